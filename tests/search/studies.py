"""Small studies: on real hosts in this process, or with trials whose outcome the test scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.federation import Federation
from fedscout.engine.messages.calls import Cohort, Session
from fedscout.engine.trials.log import TrialLog
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.runner import LocalRunner, Progress, TrialRunner
from fedscout.search.config import SearchConfig
from fedscout.search.ledger import Ledger, StudyEvents, StudyFacts
from fedscout.search.study import StudyOutcome, run_study
from tests.engine.federations import Noisy, uneven_federation

SIZES = (30, 25, 20, 15, 20)
NUM_CLIENTS = len(SIZES)
SEED = 7
FACTS = StudyFacts(
    name="tiny",
    num_rounds=2,
    cohort=Cohort(NUM_CLIENTS, NUM_CLIENTS, 0.2),
    session=Session(seed=SEED, training=LocalTraining(learning_rate=0.2, batch_size=8)),
    searcher="genetic",
    config_hash="0123",
)

CURVES = ("round_accuracy", "round_clean_accuracy", "round_loss", "round_clean_loss", "round_train_loss")

Measured = Mapping[str, Any]
"""What a trial found, by field."""
Outcome = Callable[[TrialSettings], Measured]


def by_map(found: Measured) -> dict[str, Any]:
    """Return the fields of a record: measures, named as columns such as `round_accuracy`, in their maps."""
    fields: dict[str, Any] = {"rounds": {}, "clients": {}}
    for name, value in found.items():
        kind, _, measure = name.partition("_")
        if kind in ("round", "client"):
            fields[f"{kind}s"][measure] = value
        else:
            fields[name] = value
    return fields


def completed(own: float, clean: float | None = None, num_rounds: int = 2) -> Measured:
    """Return the outcome of a trial of that fitness."""
    return measured(own, own if clean is None else clean, 0.5, num_rounds)


def failed(reason: str) -> Measured:
    """Return the outcome of a trial that failed after a good round."""
    return {"status": "failed", "error": reason, **measured(0.9, 0.9, 0.1, num_rounds=1)}


def measured(own: float, clean: float, loss: float, num_rounds: int) -> Measured:
    """Return rounds that are all alike, of clients with 200 test rows each."""
    one = dict(zip(CURVES, (own, clean, loss, loss, loss), strict=True))
    clients = {"client_id": tuple(range(NUM_CLIENTS)), "client_num_examples": (200,) * NUM_CLIENTS}
    return {**{name: (value,) * num_rounds for name, value in one.items()}, **clients}


def of_rounds(scores: Iterable[float]) -> Measured:
    """Return these numbers as each of the curves over rounds."""
    return dict.fromkeys(CURVES, tuple(scores))


def generator_of(spec: TrialSettings) -> np.random.Generator:
    """Return a generator of a configuration and a seed, the same whenever it is asked for."""
    text = f"{spec.strategy.kind}{dict(spec.strategy.parameters())}{spec.session.seed}"
    return np.random.default_rng(list(text.encode()))


@dataclass
class ScriptedRunner:
    """A runner that asks a function for results; it keeps what it was asked to do."""

    outcome: Outcome
    batches: list[list[TrialSettings]] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    backwards: bool = False

    @property
    def facts(self) -> Any:
        return SimpleNamespace(num_clients=NUM_CLIENTS)

    @property
    def ran(self) -> list[TrialSettings]:
        return [spec for batch in self.batches for spec in batch]

    def run(self, specs: Sequence[TrialSettings], progress: Progress | None = None) -> Iterator[tuple[int, Trial]]:
        if specs:
            self.batches.append(list(specs))
        order = list(enumerate(specs))
        for position, spec in reversed(order) if self.backwards else order:
            yield position, Trial.of(spec, **by_map(self.outcome(spec)))

    def forget(self, key: str) -> None:
        self.forgotten.append(key)


def tiny_federation(corrupted: bool = False) -> Federation:
    """Return five clients; corrupted, the first one's features are noisy and its labels moved."""
    federation = uneven_federation(sizes=SIZES)
    return replace(federation, transforms={0: (Noisy(2.0),)}) if corrupted else federation


def local_runner(federation: Federation) -> LocalRunner:
    """Return a runner on a host in this process."""
    return LocalRunner(ClientHost(federation, {}))


def open_log(folder: Path) -> TrialLog:
    """Return the log in a folder."""
    return TrialLog(folder)


def open_ledger(
    folder: Path, runner: TrialRunner | ScriptedRunner, events: StudyEvents | None = None, **facts: Any
) -> Ledger:
    """Return a new ledger over the log in a folder, as a restarted program would make it."""
    return Ledger(facts_of(**facts), runner, open_log(folder), events)


def facts_of(**changes: Any) -> StudyFacts:
    """Return the facts of a study; changes are those of its session, too."""
    own = {name: changes.pop(name) for name in Session.__dataclass_fields__ if name in changes}
    return replace(FACTS, **{"session": replace(FACTS.session, **own), **changes})


def study(folder: Path, runner: TrialRunner | ScriptedRunner, config: SearchConfig, **facts: Any) -> StudyOutcome:
    """Run a study, or the rest of one."""
    ledger = open_ledger(folder, runner, view=config.view, validation_fraction=config.validation_fraction, **facts)
    return run_study(config, ledger)


def keep_trials(source: Path, folder: Path, kept: Callable[[int], bool]) -> None:
    """Make a folder whose log has those of a study's trials whose places, by number, are kept."""
    (folder / "trials").mkdir(parents=True)
    for place, file in enumerate(sorted((source / "trials").iterdir())):
        if kept(place):
            (folder / "trials" / file.name).write_bytes(file.read_bytes())


def document(outcome: StudyOutcome) -> dict[str, Any]:
    """Return all of an outcome that may not depend on how it came about."""
    return {
        "trials": [trial.summary() for trial in (outcome.baseline, *outcome.trials)],
        "best": outcome.best and outcome.best.summary(),
        "tuned": [trial.summary() for trial in outcome.tuned],
        "confirmation": outcome.confirmation and outcome.confirmation.model_dump(mode="json"),
    }
