"""A data owner's policy, which the client enforces for any server, and the ledger of the privacy budget.

The policy is a TOML file on the client's machine, in which every key is optional:

```
trains = true
scores = true
queries = ["label_counts", "feature_moments"]   # default: all supported queries; [] is none
min_release = 10
epsilon = 2.0                                   # of all queries that are ever answered, none without noise
folder = "/var/lib/fedscout"                    # what was answered, and what the client keeps between rounds
```

ε covers answers to queries. Trained models and scores of models do not consume it: `trains = false` and `scores =
false` forbid them. If the folder is deleted, the record of the spent budget is lost.

The ledger is stored on the client's disk; ε adds up over all answers ever given. By sequential composition (Dwork and
Roth 2014, Theorem 3.16) answers on several terms cost the sum of their ε. On the same terms, which are those of the
noise and the study, a query is answered once and then repeated from the ledger: new noise could be averaged away. The ε
of terms covers all queries on them together (`fedscout.detectors.privacy`), and is spent before the first answer.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedscout.engine.data.client import Arrays, Privacy, SmallClients, WithheldError
from fedscout.engine.errors import ConfigurationError, DataError, Fault
from fedscout.engine.nodes.wire import Method
from fedscout.engine.runtime.files import json_text, read_json_object, write_atomically
from fedscout.engine.text import details, fault_of, shown

NO_TRAINING = "the owner of its data does not allow training"
NO_SCORING = "the owner of its data does not allow scoring"


class RefusedError(Exception):
    """The owner does not allow the request."""


class OwnerPolicy(BaseModel):
    """What the owner allows others to do with the data."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    trains: bool = Field(default=True, description="whether models are trained on this client's rows")
    scores: bool = Field(default=True, description="whether models are evaluated on this client's rows")
    queries: tuple[str, ...] | None = Field(
        default=None, strict=False, description="queries that the client answers; all by default"
    )
    min_release: int = Field(default=5, ge=1, description="fewest rows behind any number that leaves the client")
    small_clients: SmallClients = Field(
        default="abstain", description="what the client does with fewer training or test rows than min_release"
    )
    epsilon: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="total ε of all answers to queries; no noise if left out"
    )
    delta: float = Field(default=1e-6, ge=0, lt=1, description="δ of each set of answers")
    folder: Path | None = Field(default=None, strict=False, description="folder for persistent state")

    @model_validator(mode="after")
    def _check_folder(self) -> OwnerPolicy:
        if self.epsilon is not None and self.folder is None:
            raise ValueError("must have a folder with epsilon, where the spent epsilon is recorded")
        return self

    def check(self, method: Method, query: str = "") -> None:
        """Check that the owner allows a host's method.

        Raises:
            RefusedError: If not.
        """
        if method == "train" and not self.trains:
            raise RefusedError(NO_TRAINING)
        if method == "evaluate" and not self.scores:
            raise RefusedError(NO_SCORING)
        if method == "query" and self.queries is not None and query not in self.queries:
            raise RefusedError(f"the owner of its data does not allow the query {shown(query)}")


def read_policy(path: Path) -> OwnerPolicy:
    """Read a policy file; relative paths in it are relative to its folder.

    Raises:
        ConfigurationError: If it can't be read, or is invalid.
    """
    try:
        policy = OwnerPolicy.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise ConfigurationError.of("the owner's policy", "be a readable file", f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError.of(f"the owner's policy {path}", f"be TOML: {error}") from error
    except ValidationError as error:
        keys = [(".".join(map(str, problem["loc"])), problem) for problem in details(error)]
        faults = [fault_of(shown(key) if "." in key else key, problem) for key, problem in keys]
        raise ConfigurationError([Fault(path, problem=fault) for fault in faults]) from error
    if policy.folder is None:
        return policy
    return policy.model_copy(update={"folder": path.parent / policy.folder.expanduser()})


LEDGER, LOCK = "privacy.json", "privacy.lock"
SLACK = 1e-9
"""Tolerance for floating-point sums of ε."""


class PrivacyLedger:
    """The answers given and their cost.

    Args:
        folder: The ledger's folder.
        budget: ε of all answers together.
        delta: δ of each set of answers.

    Raises:
        DataError: If the spent budget can't be read; no further answers are given then.
    """

    def __init__(self, folder: Path, budget: float, delta: float) -> None:
        self._path, self._budget, self._delta = folder / LEDGER, budget, delta
        try:
            self._entries: dict[str, Any] = read_json_object(self._path)
        except FileNotFoundError:
            self._entries = {}
        except (OSError, ValueError) as error:
            raise DataError.of(self._path, f"record the spent epsilon, but can't be read: {error}") from error
        if not all(map(_is_entry, self._entries.values())):
            raise DataError.of(self._path, "record the spent epsilon, but is damaged")

    @property
    def spent(self) -> float:
        """The ε spent so far."""
        return float(sum(entry["epsilon"] for entry in self._entries.values()))

    def repeated(self, query: str, terms: Mapping[str, Any]) -> Arrays | None:
        """Return the earlier answer to a query on these terms; None if there is none."""
        answer = self._entries.get(_digest(terms), {}).get("answers", {}).get(query)
        return None if answer is None else {name: np.array(values, kind) for name, (kind, values) in answer.items()}

    def spend(self, terms: Mapping[str, Any]) -> Privacy:
        """Charge the ε of these terms, unless already charged, and return the privacy that noise must provide.

        Raises:
            WithheldError: If they specify no ε, or more than the remaining budget.
        """
        epsilon = terms.get("epsilon")
        if not isinstance(epsilon, int | float) or isinstance(epsilon, bool) or not epsilon > 0:
            raise WithheldError("answers only with noise, so a query must name its epsilon")
        if _digest(terms) not in self._entries:
            if self.spent + epsilon > self._budget + SLACK:
                raise WithheldError(f"has less than epsilon {epsilon:g} left of its privacy budget")
            self._entries[_digest(terms)] = {"epsilon": epsilon, "answers": {}}
            self._write()
        return Privacy(float(epsilon), self._delta, secure=True)

    def note(self, query: str, terms: Mapping[str, Any], arrays: Arrays) -> None:
        """Store an answer."""
        answers = self._entries[_digest(terms)]["answers"]
        answers[query] = {name: (array.dtype.str, array.tolist()) for name, array in arrays.items()}
        self._write()

    def _write(self) -> None:
        write_atomically(self._path, lambda temporary: temporary.write_text(json_text(self._entries)))


@contextmanager
def alone_with(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes, as two that read the same balance would both spend it."""
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
