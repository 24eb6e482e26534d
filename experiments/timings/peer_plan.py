"""The plan and the clients' rows with which a peer repeats a study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedscout.engine.arrays import IntArray
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.trials.record import Trial
from fedscout.experiments.config import StudyConfig
from fedscout.experiments.models.request import ImportedModel
from fedscout.experiments.timings.peers.study_plan import Split, StudyPlan, write_study
from fedscout.experiments.timings.peers.work import WorkName

DENSE, LENET = ":dense_net", ":lenet"


def plan_of(config: StudyConfig, federation: Federation, trials: Sequence[Trial], workers: int) -> StudyPlan:
    """Return the plan that the trials of a study followed.

    Args:
        config: Configuration of the study.
        federation: Its federation.
        trials: All logged trials.
        workers: Number of training processes.

    Raises:
        ConfigurationError: If the study uses something that the peer does not support.
    """
    _check_supported(config, federation)
    training = config.training
    model, sizes = _model_of(federation)
    tuning = [trial for trial in trials if trial.phase == "tuned-baseline"]
    confirmed = [trial.seed for trial in trials if trial.phase == "confirmation"]
    other_seeds = tuple(dict.fromkeys(trial.seed for trial in tuning if trial.seed != config.seed))
    seeds = tuple(dict.fromkeys(confirmed))
    return StudyPlan(
        model=model,
        sizes=sizes,
        clients=federation.num_clients,
        rounds=training.num_rounds,
        batch_size=training.batch_size,
        local_epochs=training.local_epochs,
        learning_rate=training.learning_rate,
        workers=workers,
        search_seed=config.seed,
        searched=sum(trial.phase == "search" for trial in trials),
        tuning_rates=tuple(trial.learning_rate for trial in tuning if trial.seed == config.seed),
        finalists=sum(trial.seed in other_seeds for trial in tuning) // max(1, len(other_seeds)),
        tuning_seeds=other_seeds,
        confirmation_seeds=seeds,
        contestants=len(confirmed) // max(1, len(seeds)),
    )


def write_plan(folder: Path, plan: StudyPlan, federation: Federation, test_fraction: float) -> None:
    """Write plan and rows to a folder, with fedscout's train/test split under each seed."""
    split: Split = {
        seed: [_parts(federation, client, seed, test_fraction) for client in range(federation.num_clients)]
        for seed in plan.seeds
    }
    write_study(folder, plan, federation.features, federation.labels, split)


def _parts(federation: Federation, client: int, seed: int, test_fraction: float) -> tuple[IntArray, IntArray]:
    rows = federation.partition.client(client)
    split = federation.split_rows(client, federation.labels[rows], seed, test_fraction, 0.0)
    return rows[split.train], rows[split.test]


def _model_of(federation: Federation) -> tuple[WorkName, tuple[int, ...]]:
    model = federation.model
    if isinstance(model, ImportedModel):
        arguments = dict(model.arguments)
        plain = set(arguments) <= {"widths", "flatten", "batch_norm", "image_shape", "num_classes"}
        if model.path.endswith(DENSE) and plain and not arguments["flatten"] and not arguments["batch_norm"]:
            return "dense", tuple(arguments["widths"])
        if model.path.endswith(LENET) and plain:
            return "lenet", (*arguments["image_shape"], arguments["num_classes"])
    raise ConfigurationError.of("the model", "be a plain dense net or LeNet with ReLU", model)


def _check_supported(config: StudyConfig, federation: Federation) -> None:
    """Check that the study uses only what the peer supports."""
    training = config.training
    unsupported = {
        "training.optimizer": training.optimizer != "sgd",
        "training.momentum": training.momentum > 0,
        "training.weight_decay": training.weight_decay > 0,
        "training.fraction_train": training.fraction_train < 1,
        "training.metric": training.metric is not None,
        "training.repetitions": training.repetitions > 1,
        "training.early_stopping": training.early_stopping,
        "search.validation_fraction": config.search.validation_fraction > 0,
        "federation.scenario": bool(federation.transforms or federation.attacks or federation.dropout),
        "federation.devices": bool(federation.devices),
        "federation.unseen_clients": bool(federation.unseen),
        "federation.task": federation.task_name != "classification",
        "search.kind": config.search.kind in {"racing", "one_shot"},
    }
    faults = [Fault(key, "be left out if a peer repeats the study") for key, is_set in unsupported.items() if is_set]
    if faults:
        raise ConfigurationError(faults)
