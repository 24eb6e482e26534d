"""Training the table of trials: every configuration of the grid on every seed, on every federation.

OUT/studies/     the trials, in ordinary logs, so that a measurement that was cut off goes on
OUT/parts/       the table of each federation that is done
OUT/trials.parquet    all of them
OUT/priors.parquet    what the development federations teach a first study (`prior_studies`)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fedscout.experiments.benchmarks.choice.choice_battery import ReadyCase, ready_cases
from fedscout.experiments.benchmarks.choice.choice_laboratory import Pick, measurement_folder, open_laboratory
from fedscout.experiments.benchmarks.choice.joint_battery import JOINT_BATTERY, SPACE, JointFederation
from fedscout.experiments.benchmarks.choice.joint_grid import joint_grid
from fedscout.experiments.benchmarks.choice.prior_studies import prior_studies
from fedscout.experiments.benchmarks.choice.trial_table import (
    FederationTrials,
    TabledFederation,
    TabledTrial,
    read_table,
    write_table,
)
from fedscout.search.study.study_archive import write_studies

SEEDS = (0, 1, 2, 3)
OWN = ("parts", "trials.parquet", "priors.parquet")

Note = Callable[[str], None]


def train_table(
    federations: Sequence[JointFederation] = JOINT_BATTERY,
    seeds: Sequence[int] = SEEDS,
    out: Path = Path("runs/bench-table"),
    settings: Sequence[str] = (),
    note: Note = lambda _: None,
) -> tuple[Path, Path]:
    """Train what a folder lacks of the table, and write it.

    Args:
        federations: Which.
        seeds: Of each configuration's trials.
        out: The folder; continued if it holds an earlier measurement.
        settings: Arguments that hold on every federation.
        note: Told what is done next.

    Returns:
        The table, and the priors.

    Raises:
        UserError: If a federation can't be built, or the folder can't be used.
    """
    halves = {federation.name: federation.half for federation in federations}
    ready, missing = ready_cases([federation.case for federation in federations], (*settings, *SPACE), quick=False)
    for name, reason in missing.items():
        note(f"{name} is left out: {reason}")
    with measurement_folder(out, OWN) as folder:
        parts = folder.path / "parts"
        parts.mkdir(exist_ok=True)
        found: list[FederationTrials] = []
        for place, case in enumerate(ready):
            path = parts / f"{case.config.digest()[:16]}.parquet"
            done = read_table(path)[0] if path.exists() else None
            if done is None or not {*seeds} <= {*done.seeds}:
                note(f"{place + 1} of {len(ready)}: {case.case.name}")
                done = _train(case, halves[case.case.name], seeds, folder.path)
                write_table(path, [done])
            found.append(done)
        table, priors = folder.path / "trials.parquet", folder.path / "priors.parquet"
        write_table(table, found)
        write_studies(priors, prior_studies(found))
    return table, priors


def _train(ready: ReadyCase, half: str, seeds: Sequence[int], out: Path) -> FederationTrials:
    with open_laboratory(ready, out) as laboratory:
        trials = laboratory.records([Pick(spec) for spec in joint_grid(laboratory.space)], seeds)
        about = TabledFederation.model_validate(
            {
                "name": laboratory.name,
                "half": half,
                "arguments": [argument for argument in ready.arguments if argument not in SPACE],
                "num_clients": laboratory.cohort.num_clients,
                "guessing": laboratory.ledger(ready.config).facts.guessing,
                "data_digest": laboratory.data_digest,
                "reports": {seed: laboratory.report(seed).model_dump(mode="json") for seed in seeds},
            }
        )
    rows = [TabledTrial.of(trial) for trial in trials]
    return FederationTrials(about, {(row.spec, row.seed): row for row in rows})
