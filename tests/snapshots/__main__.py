"""Write the texts anew. Usage: `python -m tests.snapshots --write`."""

from __future__ import annotations

import argparse

from tests.snapshots.texts import TEXTS, file_of

parser = argparse.ArgumentParser(prog="python -m tests.snapshots")
parser.add_argument("--write", action="store_true", required=True)
parser.parse_args()
for name, text in TEXTS.items():
    file_of(name).write_text(text())
