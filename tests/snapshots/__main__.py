"""Write the texts anew. Usage: `python -m tests.snapshots --write`."""

from __future__ import annotations

import argparse

from tests.snapshots.refusals import FILE, refusals

parser = argparse.ArgumentParser(prog="python -m tests.snapshots")
parser.add_argument("--write", action="store_true", required=True)
parser.parse_args()
FILE.write_text(refusals())
