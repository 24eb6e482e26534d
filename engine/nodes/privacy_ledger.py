"""How much privacy a client has given away, kept on its own disk: ε adds up over all that it ever answered.

By sequential composition (Dwork and Roth 2014, Theorem 3.16) answers on several terms cost the sum of their ε. On the
same terms, which are the noise's and the study's, a query is answered once and repeated from here: noise that is drawn
anew could be averaged away. The ε of terms is that of all queries that are asked on them together
(`fedscout.detectors.statistics.privacy`), and spent before the first of them is answered.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedscout.engine.data.release import Arrays, Privacy, WithheldError
from fedscout.engine.runtime.atomic_file import json_text, write_atomically
from fedscout.engine.runtime.json_file import read_json_object

LEDGER = "privacy.json"
SLACK = 1e-9
"""Of sums of ε in floating point."""


class PrivacyLedger:
    """What was answered and what it cost.

    Args:
        folder: Of the ledger.
        budget: ε of everything.
        delta: δ of each set of answers.
    """

    def __init__(self, folder: Path, budget: float, delta: float) -> None:
        self._path, self._budget, self._delta = folder / LEDGER, budget, delta
        try:
            self._entries: dict[str, Any] = read_json_object(self._path)
        except FileNotFoundError:
            self._entries = {}

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
            raise WithheldError("answers only with noise (detection.epsilon)")
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
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, lambda temporary: temporary.write_text(json_text(self._entries)))


def _digest(terms: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(dict(terms), sort_keys=True, default=str).encode()).hexdigest()
