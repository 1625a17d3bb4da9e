"""axolotl's training command, on a CPU; its configuration is what it is told."""

import sys
from pathlib import Path

from tests.lab import trainers

if __name__ == "__main__":  # the processes that it starts for packed rows read this file as well
    trainers.axolotl_command(Path(sys.argv[1]))
