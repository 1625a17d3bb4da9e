"""python -m tests.axes STACK: what ``tests.axes.table`` says."""

import sys

from tests.axes import table

if __name__ == "__main__":
    sys.exit(table.main())
