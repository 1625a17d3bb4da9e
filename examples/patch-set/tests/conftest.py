"""The stand-in's folder goes on the path; a team's tests would have the real repository installed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "site"))
