"""python -m tests.resume STACK: what ``tests.resume.table`` says."""

import sys

from tests.resume import table

if __name__ == "__main__":
    sys.exit(table.main())
