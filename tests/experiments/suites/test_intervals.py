"""Simulated studies: their truths are what they are said to be, and they go the confirmation's own way."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from scipy import stats

from fedscout.engine.messages.calls import Cohort, Session
from fedscout.experiments.grids.cells import CellContext
from fedscout.experiments.grids.experiment import Experiment
from fedscout.experiments.suites import intervals
from fedscout.experiments.suites.intervals import (
    NUM_CLIENTS,
    Coverage,
    Population,
    Sample,
    SimulatedRunner,
    Simulation,
    configurations,
)
from fedscout.search.ledger import StudyFacts

EVEN = Population((0.6, 0.6), (0.0, 0.0))


def test_a_split_deals_every_row_once_and_depends_on_the_seed() -> None:
    sample = Sample(EVEN, 1)
    train, test = sample.split(3, 0.2)
    assert np.array_equal(train, ~test)
    assert test.sum() == 0.2 * len(test)
    assert not np.array_equal(sample.split(4, 0.2)[1], test)
    assert np.array_equal(sample.split(3, 0.2)[1], test)


def test_subjects_have_one_label_lie_together_and_are_split_whole() -> None:
    """Four rows with nine tenths of their variance in common: their mean has 0.9 + 0.1/4 of it."""
    population = Population((0.0,), (0.0,), group_rows=4, alike=0.9)
    labels, features = population.draw(40_000, np.random.default_rng(0))
    assert (labels.reshape(-1, 4) == labels[::4, None]).all()
    assert features.var() == pytest.approx(1, abs=0.03)
    assert features[0].reshape(-1, 4, 4).mean(axis=1).var() == pytest.approx(0.925, abs=0.03)
    _, test = Sample(population, 1).split(3, 0.2)
    assert (test.reshape(-1, 4) == test[::4, None]).all()
    assert 0 < test.sum() < len(test)


def test_accuracy_is_that_of_the_nearest_mean() -> None:
    """Far apart every row is right; with no separation it is a coin."""
    far, near = Sample(Population((50.0,), (0.0,)), 1), Sample(Population((0.0,), (0.0,)), 1)
    assert far.accuracy(0, *far.split(1, 0.2)) == 1
    accuracies = [near.accuracy(0, *near.split(seed, 0.2)) for seed in range(50)]
    assert np.mean(accuracies) == pytest.approx(0.5, abs=0.1)


def test_a_trial_is_the_sample_s_word_and_fails_as_often_as_it_is_told() -> None:
    specs = configurations(2)
    sample = Sample(Population((0.6, 0.6), (0.0, 0.5)), 2)
    facts = StudyFacts("simulated", 1, Cohort(NUM_CLIENTS, NUM_CLIENTS, 0.1), Session(seed=1))
    batch = [facts.trial("search", spec, seed=seed) for seed in range(40) for spec in specs]
    trials = [trial for _, trial in SimulatedRunner(sample, specs).run(batch)]
    assert all(trial.status == "completed" for trial in trials[::2])
    assert 10 < sum(trial.status == "failed" for trial in trials[1::2]) < 30
    assert trials[0].own_fitness == sample.accuracy(0, *sample.split(0, 0.2))


@pytest.mark.slow
def test_coverage_is_counted_over_studies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(intervals, "NUM_FEDERATIONS", 200)
    monkeypatch.setattr(intervals, "SAME_ROWS_STUDIES", 5)
    intervals._truths.cache_clear()
    rows = {
        "none": {"arguments": {"separations": [0.6, 0.6], "failures": [0, 0]}},
        "large": {"arguments": {"separations": [0.3, 1.6], "failures": [0, 0], "batch": 4}},
    }
    document = {"title": "t", "unit": "share", "method": {"kind": "given"}, "columns": {"8 seeds": {}}, "rows": rows}
    measured_by = {"function": "fedscout.experiments.suites.intervals:Coverage"}
    experiment = Experiment.model_validate({**document, "measured_by": measured_by})
    found = Coverage().measure(experiment, CellContext(tmp_path, num_seeds=40))
    intervals._truths.cache_clear()

    def mean(what: str, row: str) -> float:
        return fmean(value for value in found.figures[what][row, "8 seeds"] if value is not None)

    assert abs(mean("truth", "none")) < 0.02
    assert mean("seeds used", "none") == 8
    assert mean("share wrongly", "none") <= 0.15
    assert np.mean(found.values["none", "8 seeds"]) >= 0.85  # type: ignore[arg-type]  # each has a number
    assert mean("truth", "large") > 0.2
    assert (mean("share better", "large"), mean("share wrongly", "large")) == (1, 0)
    assert mean("seeds used", "large") < 8
    assert sum(value is not None for value in found.figures["share here"]["none", "8 seeds"]) == 5


@pytest.mark.stress
@pytest.mark.parametrize("group_rows", [1, 4])
def test_the_best_of_eight_equal_candidates_is_wrongly_better_in_a_fortieth_of_studies_at_most(group_rows: int) -> None:
    """Through the ledger, the search's own choice and the confirmation."""
    population = Population((0.6,) * 9, (0.0,) * 9, group_rows, alike=0.5 if group_rows > 1 else 0.0)
    num_studies, simulation = 1500, Simulation(population)
    verdicts = [intervals._study(simulation, 5, number)[1].verdict for number in range(num_studies)]
    assert stats.binomtest(verdicts.count("better"), num_studies, 0.025, alternative="greater").pvalue > 1e-3
