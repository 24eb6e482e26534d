"""Detection on federations of known truth: what counts as found and as a false alarm, and a few that are run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message
from scipy import stats

from fedscout.detectors import CLIENT_QUERIES, CalibratedFinding, DetectionConfig, HeterogeneityReport
from fedscout.detectors.detect import detect
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import UserError
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.grid.replies import CLIENT_FAILED
from fedscout.engine.messages.calls import Cohort, Session
from fedscout.engine.messages.contents import client_of
from fedscout.experiments import suites
from fedscout.experiments.grids.cells import CellContext, CellValues, Measured
from fedscout.experiments.grids.experiment import Experiment, read_experiment
from fedscout.experiments.suites import intervals
from fedscout.experiments.suites.detection import CASES, MEASURES, RULES, Detections, verdict, withheld_labels
from fedscout.search.config import SearchConfig
from fedscout.search.ledger import StudyFacts
from tests.detectors.federations import federation, gaussian_clients

COLUMNS: dict[str, Any] = {f"{measure}, {rule}": {} for measure in MEASURES for rule in RULES}


@pytest.mark.parametrize(
    ("name", "scenario", "flagged", "expected"),
    [
        ("label_skew", "iid", (), (None, False, None)),
        ("label_skew", "iid", None, (None, True, None)),
        ("label_skew", "label_skew", (1,), (True, None, None)),
        ("label_skew", "label_skew", (), (False, None, None)),
        ("label_skew", "label_poisoning", (2,), (None, None, False)),
        ("feature_skew", "label_skew", (0,), (None, True, None)),
        ("feature_skew", "corrupted_client", (2,), (True, None, False)),
        ("label_skew", "sign_flip", (2,), (None, True, None)),
        ("outliers", "rare_client", (0,), (None, True, None)),
        ("outliers", "noisy_labels", (), (False, None, False)),
        ("outliers", "noisy_labels", (2,), (True, None, False)),
        ("outliers", "noisy_labels", (0, 2), (True, None, True)),
        ("outliers", "noisy_labels", (0,), (False, None, True)),
    ],
)
def test_what_is_right_and_wrong(
    name: Any, scenario: str, flagged: tuple[int, ...] | None, expected: tuple[object, ...]
) -> None:
    """The third client is affected where any is; an alarm may name nobody."""
    alarm = {"detected": flagged != (), "flagged_clients": flagged or ()}
    finding = CalibratedFinding(name=name, rate=0.05, p_value=0.5, sentence="", **alarm)
    found = verdict(finding, CASES[scenario], () if flagged is None else (2,))
    assert tuple(found.get(measure) for measure in MEASURES) == expected


def test_the_halves_share_no_data() -> None:
    folder = Path(suites.__file__).parent / "detection"
    halves = [read_experiment(folder / f"{name}.yaml").measured_by for name in ("development", "held_out")]
    one, other = ({*half.arguments["datasets"]} for half in halves if half is not None)
    assert not one & other


def measured(out: Path, rows: dict[str, Any], settings: tuple[str, ...] = (), **arguments: Any) -> Measured:
    document = {"title": "t", "unit": "share", "columns": COLUMNS, "method": {"kind": "given"}}
    named = {name: {"arguments": row} for name, row in rows.items()}
    measured_by = {"function": "fedscout.experiments.suites.detection:Detections", "arguments": arguments}
    experiment = Experiment.model_validate({**document, "rows": named, "measured_by": measured_by})
    return Detections(**arguments).measure(experiment, CellContext(out, settings, num_seeds=1))


ALARMS = {"any": {"detector": "any", "case": "iid"}, "labels": {"detector": "label_skew"}}


def test_a_data_set_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    for name in ("no_such_data", str(tmp_path / "none.csv")):
        with pytest.raises(UserError):
            measured(tmp_path, ALARMS, datasets={name: {}}, clients=[4], cases=["iid"])


def test_only_federations_of_a_row_are_run_and_what_data_do_not_allow_is_told(tmp_path: Path) -> None:
    """Breast cancer: a poisoned client is found; 400 clients are too many; two poisoners would be half of four."""
    rows = {
        "labels": {"detector": "label_skew", "case": "label_skew"},
        "outliers": {"detector": "outliers", "case": "label_poisoning"},
        "poisoners": {"detector": "outliers", "case": "two_poisoners", "clients": 4},
    }
    settings = ("detection.outlier_repetitions=4",)
    found = measured(tmp_path, rows, settings, datasets={"breast_cancer": {}}, clients=[4, 400])
    assert {*found.absent} == {f"breast_cancer, {case}, 400 clients" for case in ("label_skew", "label_poisoning")}
    assert found.values["labels", "recall, calibrated"] == (1.0,)
    assert found.values["labels", "false alarms, calibrated"] == ()
    assert found.values["outliers", "recall, calibrated"] == (1.0,)
    assert found.values["poisoners", "recall, calibrated"] == ()


@pytest.mark.slow
def test_any_alarm_is_that_of_any_detector(tmp_path: Path) -> None:
    rows = {**ALARMS, "features": {"detector": "feature_skew"}, "outliers": {"detector": "outliers"}}
    found = measured(tmp_path, rows, datasets={"wine": {}}, clients=[5], cases=["iid"]).values
    for rule in RULES:
        alarms = [found[row, f"false alarms, {rule}"] for row in ("labels", "features", "outliers")]
        assert found["any", f"false alarms, {rule}"] == (max(alarm for of_row in alarms for alarm in of_row),)  # type: ignore[type-var]


# Detection among clients that miss exchanges.


class AbsentClients(LocalGrid):
    """A grid whose clients miss each exchange with a probability, drawn anew for each."""

    def __init__(self, source: Federation, probability: float, seed: int) -> None:
        super().__init__(source, CLIENT_QUERIES, session=Session())
        self._generator, self._probability = np.random.default_rng(seed), probability
        self.absent: list[set[int]] = []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        drawn = self._generator.random(self.facts.num_clients) < self._probability
        self.absent.append({*np.flatnonzero(drawn).tolist()})
        by_absence: dict[bool, list[Message]] = {True: [], False: []}
        for message in messages:
            by_absence[client_of(message.metadata.dst_node_id) in self.absent[-1]].append(message)
        refusals = [Message(Error(CLIENT_FAILED, REASON), reply_to=message) for message in by_absence[True]]
        return [*super().send_and_receive(by_absence[False], timeout=timeout), *refusals]


REASON = "the client misses this exchange"


def report_of(source: Federation, probability: float, seed: int = 0) -> tuple[HeterogeneityReport, AbsentClients]:
    grid, grouped = AbsentClients(source, probability, seed), source.groups is not None
    return detect(grid, grid.initial_vectors, LocalTraining(), DetectionConfig(), seed=0, grouped=grouped), grid


def test_who_misses_the_first_exchange_takes_no_part() -> None:
    """Labels are compared as if there were the others alone, and the report says who told nothing."""
    clients = gaussian_clients([40] * 12)
    report, grid = report_of(federation(clients), 0.3)
    absent = sorted(grid.absent[0])
    assert 0 < len(absent) < 9
    assert report.withheld == dict.fromkeys(absent, REASON)
    there = [client for client in range(12) if client not in absent]
    assert [facts.client for facts in report.clients] == there
    alone, _ = report_of(federation([clients[client] for client in there]), 0.0)
    assert report.calibrated[0].p_value == alone.calibrated[0].p_value
    assert report.label_skew.value == alone.label_skew.value


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_whoever_is_absent_when_there_is_a_report(seed: int, grouped: bool) -> None:
    """Every exchange has other clients; all that was measured is decided, and nobody who told nothing is flagged."""
    source = federation(gaussian_clients([40] * 12))
    source = replace(source, groups=np.arange(480) // 4) if grouped else source
    report, _ = report_of(source, 0.4, seed)
    assert len(report.calibrated) == 3
    told = {facts.client for facts in report.clients}
    assert all(set(finding.flagged_clients) <= told for finding in (*report.findings, *report.calibrated))


# Counts of label skew found where clients withhold small classes.


def test_like_clients_and_one_that_differs_are_told_apart(tmp_path: Path) -> None:
    def found(labels: str, min_release: int, num_seeds: int) -> CellValues:
        context = CellContext(tmp_path, num_seeds=num_seeds)
        return withheld_labels(("", "6 × 30"), {}, context, labels=labels, min_release=min_release)

    alike = found("two classes, 5 %", 5, 5)
    assert alike.values == (0,) * 5
    assert 0 < alike.figures["share of rows withheld"][0] < 0.3  # type: ignore[operator]  # it is there
    assert sum(found("one client", 5, 20).values) >= 4  # type: ignore[arg-type]
    assert found("two classes, 5 %", 1, 5).figures == {"share of rows withheld": (0,)}


# Simulated studies: their truths are what they are said to be, and they go the confirmation's own way.


EVEN = intervals.Population((0.6, 0.6), (0.0, 0.0))


def test_a_split_deals_every_row_once_and_depends_on_the_seed() -> None:
    sample = intervals.Sample(EVEN, 1)
    train, test = sample.split(3, 0.2)
    assert np.array_equal(train, ~test)
    assert test.sum() == 0.2 * len(test)
    assert not np.array_equal(sample.split(4, 0.2)[1], test)
    assert np.array_equal(sample.split(3, 0.2)[1], test)


def test_subjects_have_one_label_lie_together_and_are_split_whole() -> None:
    """Four rows with nine tenths of their variance in common: their mean has 0.9 + 0.1/4 of it."""
    population = intervals.Population((0.0,), (0.0,), group_rows=4, alike=0.9)
    labels, features = population.draw(40_000, np.random.default_rng(0))
    assert (labels.reshape(-1, 4) == labels[::4, None]).all()
    assert features.var() == pytest.approx(1, abs=0.03)
    assert features[0].reshape(-1, 4, 4).mean(axis=1).var() == pytest.approx(0.925, abs=0.03)
    _, test = intervals.Sample(population, 1).split(3, 0.2)
    assert (test.reshape(-1, 4) == test[::4, None]).all()
    assert 0 < test.sum() < len(test)


def test_accuracy_is_that_of_the_nearest_mean() -> None:
    """Far apart every row is right; with no separation it is a coin."""
    far, near = (intervals.Sample(intervals.Population((apart,), (0.0,)), 1) for apart in (50.0, 0.0))
    assert far.accuracy(0, *far.split(1, 0.2)) == 1
    accuracies = [near.accuracy(0, *near.split(seed, 0.2)) for seed in range(50)]
    assert np.mean(accuracies) == pytest.approx(0.5, abs=0.1)


def test_a_trial_is_the_sample_s_word_and_fails_as_often_as_it_is_told() -> None:
    specs = intervals.configurations(2)
    sample = intervals.Sample(intervals.Population((0.6, 0.6), (0.0, 0.5)), 2)
    facts = StudyFacts("simulated", 1, Cohort(intervals.NUM_CLIENTS, intervals.NUM_CLIENTS, 0.1), Session(seed=1))
    batch = [facts.trial("search", spec, seed=seed) for seed in range(40) for spec in specs]
    trials = [trial for _, trial in sample.run(batch)]
    assert all(trial.status == "completed" for trial in trials[::2])
    assert 10 < sum(trial.status == "failed" for trial in trials[1::2]) < 30
    assert trials[0].own_fitness == sample.accuracy(0, *sample.split(0, 0.2))


@pytest.mark.slow
def test_coverage_is_counted_over_studies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(intervals, "NUM_FEDERATIONS", 200)
    intervals._truths.cache_clear()
    rows: dict[str, dict[str, Any]] = {
        "none": {"separations": [0.6, 0.6], "failures": [0, 0]},
        "large": {"separations": [0.3, 1.6], "failures": [0, 0], "batch": 4},
    }
    context = CellContext(tmp_path, num_seeds=40)
    found = {row: intervals.coverage((row, "8 seeds"), {}, context, **population) for row, population in rows.items()}
    intervals._truths.cache_clear()

    def mean(what: str, row: str) -> float:
        return fmean(value for value in found[row].figures[what] if value is not None)

    assert abs(mean("truth", "none")) < 0.02
    assert mean("seeds used", "none") == 8
    assert mean("share wrongly", "none") <= 0.15
    assert np.mean(found["none"].values) >= 0.85  # type: ignore[arg-type]  # each has a number
    assert mean("truth", "large") > 0.2
    assert (mean("share better", "large"), mean("share wrongly", "large")) == (1, 0)
    assert mean("seeds used", "large") < 8


@pytest.mark.stress
@pytest.mark.parametrize("group_rows", [1, 4])
def test_the_best_of_eight_equal_candidates_is_wrongly_better_in_a_fortieth_of_studies_at_most(group_rows: int) -> None:
    """Through the ledger, the search's own choice and the confirmation."""
    population = intervals.Population((0.6,) * 9, (0.0,) * 9, group_rows, alike=0.5 if group_rows > 1 else 0.0)
    num_studies, config = 600, SearchConfig(confirmation_seeds=5)
    verdicts = [intervals.simulated_study(population, config, number).verdict for number in range(num_studies)]
    assert stats.binomtest(verdicts.count("better"), num_studies, 0.025, alternative="greater").pvalue > 1e-3
