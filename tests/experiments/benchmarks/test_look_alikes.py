"""The measurement of look-alikes: no row on both sides, regrets by hand, nothing trained twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from fedscout.engine.errors import ConfigurationError
from fedscout.engine.trials import trial_runner
from fedscout.engine.trials.trial_record import Trial
from fedscout.engine.trials.trial_settings import TrialSettings
from fedscout.experiments.benchmarks.look_alikes.look_alike_battery import BATTERY, DATA, cases_of, original
from fedscout.experiments.benchmarks.look_alikes.look_alike_measurement import (
    ON_ORIGINAL,
    ON_SAME,
    Plan,
    plan_of,
    run_look_alikes,
)
from fedscout.experiments.benchmarks.look_alikes.look_alike_regret import CarriedChoice, OriginalLevel, summarise
from fedscout.experiments.benchmarks.look_alikes.look_alike_tables import table_lines
from fedscout.experiments.studies.settings_tables.proxy_data import row_digests
from tests.search.studies import completed

WINE = "wine, Dirichlet 0.1, 6 clients"
ROUNDS = ("training.num_rounds=2", "detection.outlier_repetitions=1", "detection.outlier_min_flags=1")
WORTH = {"fedavg": 0.5, "fedadam": 0.8, "fedyogi": 0.7}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[TrialSettings]:
    """Have trials come out by their strategy, and tell what was asked for."""
    seen: list[TrialSettings] = []

    def run(settings: TrialSettings, *_: Any) -> Trial:
        seen.append(settings)
        return Trial.of(settings, **completed(WORTH.get(settings.strategy.kind, 0.4)))

    monkeypatch.setattr(trial_runner, "run_trial", run)
    return seen


def test_twelve_federations_of_data_that_there_are() -> None:
    assert len({case.name for case in BATTERY}) == 12
    assert all({case.data, case.other} <= DATA.keys() and case.data != case.other for case in BATTERY)
    with pytest.raises(ConfigurationError, match="--federation must be one of"):
        cases_of(["iris"])
    with pytest.raises(ConfigurationError, match=r"--chooser must be one of .*racing"):
        plan_of("warm racing", 1, 2)


def test_no_row_is_on_both_sides() -> None:
    (case,) = cases_of([WINE])
    ready, proxy = original(case, ())
    clients, server = ({*row_digests(part.features, part.labels)} for part in (ready.federation, proxy))
    assert not clients & server
    assert len(ready.federation.labels) == len(proxy.labels) == 89
    assert np.abs(np.bincount(ready.federation.labels) - np.bincount(proxy.labels)).max() <= 1


def test_regrets_by_hand() -> None:
    level = OriginalLevel(oracle=(0.9, 0.9), tuned=(0.7, 0.8), fedavg=(0.5, 0.5), best="x")
    assert level.is_to_win
    assert_allclose(level.regret_tuned(0.8), 0.1 / 0.15)
    assert_allclose(level.regret_fedavg(0.8), 0.1 / 0.4)
    assert OriginalLevel(oracle=(0.9, 0.7), tuned=(0.7, 0.8), fedavg=(0.5, 0.5), best="x").regret_tuned(0.8) is None
    choice = CarriedChoice(
        federation="a",
        chooser="c",
        seed=0,
        pick="",
        real=0,
        simulated=4,
        accuracy=0.8,
        regret_tuned=0.5,
        regret_fedavg=None,
        versus_tuned=-0.05,
    )
    other = choice.model_copy(update={"federation": "b", "regret_tuned": None, "versus_tuned": 0.05})
    summary = summarise("c", [choice, other])
    assert summary.regret_tuned is not None
    assert (summary.regret_tuned.mean, summary.regret_tuned.federations) == (0.5, 1)
    assert summary.regret_fedavg is None
    assert (summary.num_below, summary.num_federations) == (1, 2)


@pytest.mark.slow
def test_a_second_measurement_trains_nothing_and_finalists_cost_what_they_take(
    tmp_path: Path, asked: list[TrialSettings]
) -> None:
    plan = Plan("genetic 4", num_search_seeds=1, num_fresh_seeds=2)
    report = run_look_alikes(cases_of([WINE]), plan, ROUNDS, tmp_path / "out")
    trained = len(asked)
    assert trained > 100, "the grid is among them"
    assert run_look_alikes(cases_of([WINE]), plan, ROUNDS, tmp_path / "out") == report
    assert len(asked) == trained
    costs = {choice.chooser: (choice.real, choice.simulated) for choice in report.choices}
    assert costs[ON_ORIGINAL] == (4, 0)
    assert costs[ON_SAME] == (0, 4)
    assert costs[f"{ON_SAME}, 3 finalists"][0] in (1, 2, 3)
    assert costs[f"{ON_SAME}, at 3 rates"] == (3, 4)
    assert report.levels[WINE].best.startswith("fedadam")
    assert report.nearness[WINE].scale[1] == 1, "digits have rows enough"
    lines = "\n".join(table_lines(report))
    assert (tmp_path / "out" / "result.md").read_text() == lines + "\n"
    assert f"| {ON_SAME} |" in lines
