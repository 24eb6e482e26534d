"""How much privacy a client has given away, kept on its own disk: ε adds up over all that it ever answered.

By sequential composition (Dwork and Roth 2014, Theorem 3.16) answers on several terms cost the sum of their ε. On the
same terms, which are the noise's and the study's, a query is answered once and repeated from here: noise that is drawn
anew could be averaged away. The ε of terms is that of all queries that are asked on them together
(`fedscout.detectors.statistics.privacy`), and spent before the first of them is answered.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedscout.engine.data.release import Arrays, Privacy, WithheldError
from fedscout.engine.errors import DataError, Fault
from fedscout.engine.runtime.atomic_file import json_text, write_atomically
from fedscout.engine.runtime.json_file import read_json_object

LEDGER, LOCK = "privacy.json", "privacy.lock"
SLACK = 1e-9
"""Of sums of ε in floating point."""


class PrivacyLedger:
    """What was answered and what it cost.

    Args:
        folder: Of the ledger.
        budget: ε of everything.
        delta: δ of each set of answers.

    Raises:
        DataError: If what was spent can't be told: nothing more is given then.
    """

    def __init__(self, folder: Path, budget: float, delta: float) -> None:
        self._path, self._budget, self._delta = folder / LEDGER, budget, delta
        try:
            self._entries: dict[str, Any] = read_json_object(self._path)
        except FileNotFoundError:
            self._entries = {}
        except (OSError, ValueError) as error:
            raise DataError(Fault(self._path, f"say what was spent of epsilon, and can't be read: {error}")) from error
        if not all(map(_is_entry, self._entries.values())):
            raise DataError(Fault(self._path, "say what was spent of epsilon, and is damaged"))

    @property
    def spent(self) -> float:
        """ε so far."""
        return float(sum(entry["epsilon"] for entry in self._entries.values()))

    def repeated(self, query: str, terms: Mapping[str, Any]) -> Arrays | None:
        """Return what was answered to a query on these terms; None if nothing was."""
        told = self._entries.get(_digest(terms), {}).get("answers", {}).get(query)
        return None if told is None else {name: np.array(values, kind) for name, (kind, values) in told.items()}

    def spend(self, terms: Mapping[str, Any]) -> Privacy:
        """Pay for what is asked on these terms, and return what noise must give.

        Raises:
            WithheldError: If they name no noise, or more is asked than is left.
        """
        epsilon = terms.get("epsilon")
        if not isinstance(epsilon, int | float) or isinstance(epsilon, bool) or not epsilon > 0:
            raise WithheldError("answers only with noise, of an epsilon that is named")
        if _digest(terms) not in self._entries:
            if self.spent + epsilon > self._budget + SLACK:
                raise WithheldError(f"has no epsilon of {epsilon:g} left to give")
            self._entries[_digest(terms)] = {"epsilon": epsilon, "answers": {}}
            self._write()
        return Privacy(float(epsilon), self._delta, secure=True)

    def note(self, query: str, terms: Mapping[str, Any], arrays: Arrays) -> None:
        """Remember what was answered."""
        answers = self._entries[_digest(terms)]["answers"]
        answers[query] = {name: (array.dtype.str, array.tolist()) for name, array in arrays.items()}
        self._write()

    def _write(self) -> None:
        write_atomically(self._path, lambda temporary: temporary.write_text(json_text(self._entries)))


@contextmanager
def alone_with(folder: Path) -> Iterator[None]:
    """Keep other processes from counting in a folder: two that have read the same would both spend."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("answers"), dict):
        return False
    epsilon = entry.get("epsilon")
    return isinstance(epsilon, int | float) and not isinstance(epsilon, bool) and 0 < epsilon < float("inf")


def _digest(terms: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(dict(terms), sort_keys=True, default=str).encode()).hexdigest()
