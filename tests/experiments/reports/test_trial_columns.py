"""What tables of trials tell beside fitness."""

from __future__ import annotations

import pytest

from fedscout.engine.trials.record import Trial
from fedscout.experiments.reports.console import bytes_text
from fedscout.experiments.reports.details import TrialLine, informative_columns
from fedscout.search.objective import ACCURACY, Objective

FEDAVG = TrialLine(own=0.5, shared=None, new_client=None, bytes_down=1000.0, bytes_up=1000.0)
DITTO = TrialLine(own=0.75, shared=0.5, new_client=None, bytes_down=1000.0, bytes_up=1000.0)
SCAFFOLD = TrialLine(own=0.625, shared=None, new_client=None, bytes_down=1900.0, bytes_up=2000.0)
FAILED = TrialLine(own=None, shared=None, new_client=None, bytes_down=None, bytes_up=None)


def test_nothing_where_nothing_differs() -> None:
    assert informative_columns([FEDAVG, FEDAVG, FAILED]) == {}
    assert informative_columns([FAILED]) == {}
    assert informative_columns([]) == {}


def test_the_global_model_beside_models_of_clients_own() -> None:
    """Where clients use it, it is what they are scored by."""
    assert informative_columns([FEDAVG, DITTO, FAILED]) == {"global model": ["0.5000", "0.5000", ""]}


def test_new_clients_where_there_are_some() -> None:
    new = TrialLine(own=0.5, shared=None, new_client=0.25, bytes_down=1.0, bytes_up=1.0)
    assert informative_columns([new, new]) == {"new client": ["0.2500", "0.2500"]}


def test_bytes_where_they_differ_or_stand_alone() -> None:
    differing = {"down per round": ["1 kB", "1.9 kB"], "up per round": ["1 kB", "2 kB"]}
    assert informative_columns([FEDAVG, SCAFFOLD]) == differing
    assert informative_columns([SCAFFOLD]) == {"down per round": ["1.9 kB"], "up per round": ["2 kB"]}


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (73_850, "73.8 kB"), (4e6, "4 MB"), (1e9, "1 GB"), (2e16, "2e+04 TB")],
)
def test_bytes_for_people(count: float, text: str) -> None:
    assert bytes_text(count) == text


def test_time_stands_where_there_is_a_clock_and_time_to_a_target_where_there_is_one() -> None:
    """Five rounds of 30 s; a mean of 0.6 is reached by the whole of them, one of 0.7 is not."""
    trial = Trial(round_accuracy=(0.4, 0.5, 0.6, 0.7, 0.8), round_seconds=(30.0,) * 5)
    near, far = (Objective("time_to_accuracy", 5, target).measure(ACCURACY) for target in (0.6, 0.7))
    assert informative_columns([TrialLine.of_trial(trial)])["simulated time"] == ["2.5 min"]
    assert "time to target" not in informative_columns([TrialLine.of_trial(trial)])
    assert informative_columns([TrialLine.of_trial(trial, near)])["time to target"] == ["2.5 min"]
    assert "time to target" not in informative_columns([TrialLine.of_trial(trial, far)])
