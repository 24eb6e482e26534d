"""Every pair of features runs, or is refused with a key before anything is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import pytest

from fedscout.engine.errors import UserError
from fedscout.experiments.config import load_config
from fedscout.experiments.studies.workflow import run_workflow

BASE = (
    "engine.grid=local",
    "federation.dataset=digits",
    "federation.max_rows=300",
    "federation.num_clients=5",
    "federation.partition.alpha=1",
    "training.num_rounds=2",
    "model.hidden=[8]",
    "search.budget=2",
    "search.generation_size=2",
    "search.confirmation_seeds=0",
    "detection.outlier_repetitions=1",
    "detection.outlier_min_flags=1",
    "detection.outlier_rounds=1",
)

KINDS = "fedprox fedadam krum qfedavg scaffold fednova ditto fedrep communities dp_fedavg fedmedian krum+fedprox"

FEATURES: Mapping[str, Sequence[str]] = {
    "regression": ("federation.dataset=diabetes", "model.hidden=[8]"),
    "convolutions": ("model.kind=lenet", "model.hidden"),
    "batch norm": ("model.norm=batch",),
    "dropout": ("model.dropout=0.2",),
    "shards": ("federation.partition.kind=shard", "federation.partition.alpha"),
    "label poisoning": ("federation.scenario=[{kind: poisoning, clients: [1]}]",),
    "noisy features": ("federation.scenario=[{kind: feature_noise, clients: [1], std: 1}]",),
    "absent clients": ("federation.scenario=[{kind: dropout, clients: all, probability: 0.3}]",),
    "slow devices": ("federation.scenario=[{kind: devices, clients: all, seconds_per_step: 0.01}]",),
    "unseen clients": ("federation.unseen_clients=1",),
    "server rows": ("federation.server_rows=40",),
    "server labels": ("federation.server_rows=40", "federation.server_labels=true"),
    "time-ordered split": ("federation.split=last",),
    "large release": ("federation.min_release=8",),
    "abstaining clients": ("federation.min_release=8", "federation.small_clients=abstain"),
    "auroc": ("training.metric=auroc",),
    "participation": ("training.fraction_train=0.6",),
    "early stopping": ("training.early_stopping=true", "training.num_rounds=12"),
    "repetitions": ("training.repetitions=3",),
    "adam": ("training.optimizer=adam",),
    "bfloat16": ("training.precision=bfloat16",),
    "pseudo labels": ("training.pseudo_label_weight=0.5",),
    "scored clients": ("training.scored_clients=2",),
    "simulated deadline": ("training.simulated_deadline_seconds=1",),
    "loop": ("training.backend=loop",),
    "epsilon": ("detection.epsilon=5",),
    "random policy": ("selection.kind=random", "training.fraction_train=0.6"),
    "flash": ("selection.kind=flash", "training.fraction_train=0.6"),
    "oort": ("selection.kind=oort", "training.fraction_train=0.6"),
    "worst clients": ("search.objective=worst_clients",),
    "two objectives": ("search.objective=[accuracy,worst_clients]",),
    "rounds to target": ("search.objective=rounds_to_target", "search.target=0.3"),
    "clean view": ("search.view=clean",),
    "validation rows": ("search.validation_fraction=0.25",),
    "client ranges": ("search.client_ranges.learning_rate={low: 0.05, high: 0.5, log: true}",),
    "confirmation": ("search.confirmation_seeds=2", "search.tuning_factors=[2]"),
    **{f"search {kind}": (f"search.kind={kind}",) for kind in ("tpe", "gp", "random", "grid", "racing", "one_shot")},
    "cmaes": ("search.kind=cmaes", "search.strategies=[fedadam]"),
    "published": ("search.published=true",),
    "fedbn": ("search.strategies=[fedbn]", "model.norm=batch"),
    "feddf": ("search.strategies=[feddf]", "federation.server_rows=40"),
    **{kind: (f"search.strategies=[{kind}]",) for kind in KINDS.split()},
}


def settings_of(*names: str) -> dict[str, str] | None:
    """Return the settings of features together, by key; None if they set a key differently."""
    settings = dict(argument.split("=", 1) for argument in BASE)
    chosen: dict[str, str] = {}
    for name in names:
        for argument in FEATURES[name]:
            key, _, value = argument.partition("=")
            if chosen.setdefault(key, value) != value:
                return None
    return {key: value for key, value in (settings | chosen).items() if value}


def pairs() -> Iterator[tuple[str, ...]]:
    """Yield the features alone and every pair of them that can be configured together."""
    yield from ((name,) for name in FEATURES)
    yield from (pair for pair in combinations(FEATURES, 2) if settings_of(*pair) is not None)


PAIRS = tuple(pairs())


def defect(names: Sequence[str], folder: Path) -> str | None:
    """Run a study with features; return what is wrong with its end, None if nothing is."""
    settings = settings_of(*names)
    assert settings is not None
    try:
        outcome = run_workflow(load_config([f"{key}={value}" for key, value in settings.items()]), folder).outcome
    except UserError as error:
        if None in error.keys:
            return f"no key: {error}"
        return f"{folder} was left behind" if folder.exists() else None
    failed = [trial.error for trial in (outcome.baseline, *outcome.trials) if trial.status == "failed"]
    return f"failed: {failed[0]}" if failed else None


@pytest.mark.parametrize("names", PAIRS[::67], ids=" and ".join)
def test_features_run_together_or_are_refused(names: Sequence[str], tmp_path: Path) -> None:
    assert defect(names, tmp_path / "out") is None


@pytest.mark.stress
@pytest.mark.timeout(3600)
def test_all_pairs(tmp_path: Path) -> None:
    found = {names: defect(names, tmp_path / str(place)) for place, names in enumerate(PAIRS)}
    assert {names: text for names, text in found.items() if text is not None} == {}
