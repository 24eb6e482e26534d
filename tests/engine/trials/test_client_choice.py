"""A selection policy in a trial: who trains, what it is told, and that hosts, kills and merging change nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from flwr.serverapp.strategy import FedAvg
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn

from fedscout.engine.arrays import IntArray
from fedscout.engine.client.host import ClientHost
from fedscout.engine.data.client import Release
from fedscout.engine.data.federation import Device
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import Assignment, ClientTable, Cohort, ReportRequest, RoundReport, SelectionPolicy
from fedscout.engine.models.flat import new_model
from fedscout.engine.seeds import stream
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.trial import run_trial
from tests.engine.choices import FEDADAM, FEDAVG, INDIVIDUAL, Choice, spec_of
from tests.engine.federations import ABLE, CORRUPTED, EMPTY, QUERIES, SIZES, dense, uneven_federation
from tests.engine.grid.test_local_grid import WatchedGrid
from tests.engine.trials.test_resume import assert_all_same, assert_going_on
from tests.engine.trials.test_trial import Whole

EVERYTHING = ReportRequest(training_losses=True, validation_losses=True, update_norms=True, include_idle_clients=True)
MODEL_BYTES = 4 * 53


class Recorder(SelectionPolicy):
    """Chooses at random, or by turns, and keeps every report."""

    told: ClassVar[list[list[RoundReport]]] = []

    def __init__(self, observes: ReportRequest, fixed: Sequence[Any] = (), longer: Mapping[int, Any] | None = None):
        self.observes = observes
        self.fixed = list(fixed)
        self.longer = dict(longer or {})
        self.weights: dict[int, float] = {}
        self._reports: list[RoundReport] = []
        Recorder.told.append(self._reports)

    def choose(self, server_round: int, table: ClientTable, num_chosen: int, generator: np.random.Generator) -> Any:
        if self.fixed:
            return self.fixed
        worth = np.array([self.weights.get(client, 1e3) for client in table.clients.tolist()])
        return table.clients[np.argsort(-worth - generator.random(len(worth)))[:num_chosen]]

    def assign(self, table: ClientTable, chosen: Sequence[int]) -> Mapping[int, Assignment]:
        return {client: each for client, each in self.longer.items() if client in chosen}

    def observe(self, report: RoundReport) -> None:
        self._reports.append(report)
        norms = np.where(np.isnan(report.update_norm), 0, report.update_norm)
        self.weights |= dict(zip(report.clients.tolist(), norms.tolist(), strict=True))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_reports"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


@dataclass(frozen=True)
class Choosing:
    """A policy as a specification."""

    observes: ReportRequest = EVERYTHING
    fixed: tuple[Any, ...] = ()
    longer: Mapping[int, Any] = field(default_factory=dict)
    kind: str = "recorder"
    label: str = "recorder"
    validation_share: float = 0.25
    does: Mapping[str, Any] = field(default_factory=dict)

    def parameters(self) -> Mapping[str, Any]:
        return {}

    def code(self) -> Mapping[str, str]:
        return {}

    def build(self, cohort: Cohort) -> SelectionPolicy:
        policy = Recorder(self.observes, self.fixed, self.longer)
        vars(policy).update(self.does)
        return policy


def settings_of(strategy: Choice = FEDAVG, selection: Any = Choosing(), **changes: Any) -> TrialSettings:
    return replace(spec_of(strategy, **{"num_sampled": 3, "num_rounds": 4, **changes}), selection=selection)


def run(host: ClientHost, settings: TrialSettings, merge: bool = True) -> tuple[Trial, list[RoundReport]]:
    trial = run_trial(settings, LocalGrid(host, session=settings.session, merge_on_hosts=merge))
    return trial, Recorder.told[-1]


def test_those_train_who_were_chosen_and_nobody_else(host: ClientHost) -> None:
    settings = settings_of(selection=Choosing(fixed=(5, 0, 3)))
    grid = WatchedGrid(host, session=settings.session)
    trial = run_trial(settings, grid)
    assert trial.error is None
    assert {call.clients for method, call in grid.calls_made if method == "train"} == {(0, 3, 5)}
    assert dict(zip(trial.clients["id"], trial.clients.get("rounds") or (), strict=True)) == {
        client: 4 if client in (0, 3, 5) else 0 for client in trial.clients["id"]
    }
    assert trial.selection == "recorder"
    assert not trial.notes


def test_to_choose_everybody_is_to_have_no_policy(host: ClientHost) -> None:
    everybody = Choosing(ReportRequest(), fixed=tuple(range(len(SIZES))), validation_share=0.0)
    chosen, _ = run(host, settings_of(selection=everybody))
    free, _ = run(host, settings_of(selection=None, num_sampled=len(SIZES)))
    assert_all_same(chosen, free)
    assert free.clients.get("rounds") is None


def test_a_report_holds_the_received_model_s_losses_and_what_training_moved(host: ClientHost) -> None:
    settings = settings_of(num_rounds=1, selection=Choosing(fixed=(0, 3, EMPTY)), keep_model=True)
    _, (report,) = run(host, settings)
    assert report.clients.tolist() == [client for client in range(len(SIZES)) if client != EMPTY]
    assert report.clients[report.trained].tolist() == [0, 3]
    assert set(report.failures) == {EMPTY}
    model = new_model(dense, 0)
    received = LocalGrid(host, session=settings.session).initial_vector(settings.session.seed)
    model.load(torch.from_numpy(received.copy()))
    federation = uneven_federation()
    for place, client in enumerate(report.clients.tolist()):
        own = federation.client_data(client).own
        session = settings.session
        shares = session.test_fraction, session.validation_fraction
        split = federation.split_rows(client, own.labels[own.rows], session.seed, *shares)
        for losses, part in ((report.training, split.train), (report.validation, split.validation)):
            rows = own.rows[part]
            if not len(rows):
                assert np.isnan(losses.cross_entropy[place])
                continue
            with torch.no_grad():
                outputs = model.module(torch.from_numpy(own.features[rows])).double()
            labels = torch.from_numpy(own.labels[rows])
            entropy, p = nn.functional.cross_entropy(outputs, labels, reduction="none"), outputs.softmax(dim=1)
            assert_allclose(losses.cross_entropy[place], entropy.mean(), rtol=1e-6)
            assert_allclose(losses.squared[place], (entropy**2).mean(), rtol=1e-6)
            assert_allclose(losses.miss[place], (1 - p.gather(1, labels[:, None])).mean(), rtol=1e-6)
            assert_allclose(losses.entropy[place], -(p * p.log()).sum(dim=1).mean(), rtol=1e-6)
        assert report.num_examples[place] == len(split.train)
    alone, _ = run(host, settings_of(num_rounds=1, selection=Choosing(fixed=(0,)), keep_model=True))
    norm = np.linalg.norm(alone.vector.astype(np.float64) - received)
    assert_allclose(report.update_norm[0], norm, rtol=1e-4)  # a merged mean of one is rounded
    assert np.isnan(report.update_norm[~report.trained]).all()
    assert np.isnan(report.loss[~report.trained]).all()


@pytest.mark.parametrize("strategy", [FEDADAM, replace(FEDADAM, wants=INDIVIDUAL)], ids=["merged", "individual"])
def test_reports_are_the_same_wherever_replies_are_merged(host: ClientHost, strategy: Choice) -> None:
    (one, reports), (other, others) = (run(host, settings_of(strategy), merge) for merge in (True, False))
    assert_all_same(one, other)
    assert len(reports) == 4
    np.testing.assert_equal(list(map(asdict, reports)), list(map(asdict, others)))  # NaN is what was not measured


@pytest.mark.parametrize("stopped_in", [1, 3])
def test_a_killed_trial_goes_on_with_the_same_choices(host: ClientHost, tmp_path: Path, stopped_in: int) -> None:
    resumed, expected = assert_going_on(settings_of(FEDADAM), host, tmp_path, stopped_in)
    assert resumed.clients.get("rounds") == expected.clients.get("rounds")


def test_who_only_measures_pays_for_the_model(host: ClientHost) -> None:
    """Three of seven train; four receive the model and send a few numbers, which are not counted."""
    silent, _ = run(host, settings_of(selection=Choosing(ReportRequest(), fixed=(0, 1, 3), validation_share=0.25)))
    asking, _ = run(host, settings_of(selection=Choosing(fixed=(0, 1, 3))))
    assert (silent.bytes_down, asking.bytes_down) == (3 * MODEL_BYTES, 7 * MODEL_BYTES)
    assert silent.bytes_up == asking.bytes_up == 3 * MODEL_BYTES
    assert_array_equal(silent.rounds["accuracy"], asking.rounds["accuracy"])


def test_an_assignment_trains_longer_and_withholds_tensors(host: ClientHost) -> None:
    client = 0
    longer = Choosing(ReportRequest(), (client,), {client: Assignment(epochs=3)}, validation_share=0.0)
    plain = Choosing(ReportRequest(), (client,), validation_share=0.0)
    settings = settings_of(selection=plain, num_rounds=1, keep_model=True)
    training = settings.session.training
    three = replace(settings.session, training=training.model_copy(update={"local_epochs": 3 * training.local_epochs}))
    by_policy, reports = run(host, replace(settings, selection=longer))
    by_training, _ = run(host, replace(settings, session=three))
    assert_array_equal(by_policy.vector, by_training.vector)
    assert reports[0].num_steps[0] == Recorder.told[-1][0].num_steps[0]

    half = Choosing(ReportRequest(), (client,), {client: Assignment(withheld=0.5)}, validation_share=0.0)
    gaps, _ = run(host, replace(settings, selection=half))
    whole, _ = run(host, settings)
    received = LocalGrid(host, session=settings.session).initial_vector(settings.session.seed)
    layout = host.facts().layout
    sides = [layout.split(vector) for vector in (gaps.vector, received, whole.vector)]
    kept = [np.array_equal(sides[0][name], sides[1][name]) for name in sides[0]]
    sent = [np.array_equal(sides[0][name], sides[2][name]) for name in sides[0]]
    assert sum(kept) == 2
    assert [not one for one in kept] == sent
    values = sum(slot.size for slot, is_kept in zip(layout.slots, kept, strict=True) if is_kept)
    assert gaps.bytes_up == MODEL_BYTES - 4 * values


def test_a_report_has_the_clock_of_the_log() -> None:
    """A round lasts as long as the slowest of those that train and of those that measure, whose names it tells."""
    federation = replace(uneven_federation(), devices={0: Device(shift_seconds=9.0), 3: Device(mean_seconds=4.0)})
    trial, reports = run(ClientHost(federation, QUERIES), settings_of(selection=Choosing(fixed=(1, 3))))
    assert trial.rounds.get("seconds") == tuple(report.round_seconds for report in reports)
    session = settings_of().session
    probe = 9.0 / 3 / session.training.local_epochs
    for report in reports:
        seconds = dict(zip(report.clients.tolist(), report.seconds.tolist(), strict=True))
        late = 4.0 * float(stream(session.seed, "latency", report.server_round, 3).exponential())
        assert {client: lasts for client, lasts in seconds.items() if lasts} == {0: pytest.approx(probe), 3: late}
        assert report.round_seconds == max(seconds.values())


class Willful(FedAvg):
    """Asks one client of those that it is shown."""

    def configure_train(self, *arguments: Any) -> Any:
        return list(super().configure_train(*arguments))[:1]


def writes_to_the_table(server_round: int, table: ClientTable, *_: Any) -> IntArray:
    table.clients[:] = 99 + np.arange(len(table.clients))
    return table.clients[:3]


def assigns_to_all(table: ClientTable, _: Sequence[int]) -> Mapping[int, Assignment]:
    return dict.fromkeys(table.clients, Assignment())


def unruly(**does: Any) -> Choosing:
    """A policy some of whose methods do something else."""
    return Choosing(ReportRequest(), validation_share=0.0, does=does)


FAILURES: dict[str, tuple[Choice, Choosing, str]] = {
    "samples by itself": (Choice(Willful), Choosing(), r"\b3\b.*selection\.kind=recorder .*\b1\b"),
    "own start": (Choice(Whole), Choosing(), "Whole"),
    "twice": (FEDAVG, Choosing(fixed=(1, 1, 2)), r"\b7\b.*\[1, 1, 2\]$"),
    "nobody": (FEDAVG, Choosing(fixed=(1, 77)), r"\b7\b.*\[1, 77\]$"),
    "parts": (FEDAVG, Choosing(fixed=(0.7, 1.9)), r"\[0\.7, 1\.9\]$"),
    "texts": (FEDAVG, Choosing(fixed=("a",)), r"\['a'\]$"),
    "nothing": (FEDAVG, unruly(choose=lambda *_: None), r"\[None\]$"),
    "no assignment": (FEDAVG, Choosing(fixed=(1,), longer={1: 3}), r"Assignment .*\[1\].*\{1: 3\}$"),
    "assigns to all": (FEDAVG, unruly(assign=assigns_to_all), "an Assignment"),
    "assigns nothing": (FEDAVG, unruly(assign=lambda *_: None), "an Assignment"),
    "writes to the table": (FEDAVG, unruly(choose=writes_to_the_table), "read-only"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_can_t_be_chosen_fails_the_trial_with_its_reason(host: ClientHost, name: str) -> None:
    strategy, selection, reason = FAILURES[name]
    trial, _ = run(host, settings_of(strategy, selection))
    assert trial.status == "failed"
    assert re.search(reason, str(trial.error))


@pytest.mark.parametrize("given", [{"epochs": 0}, {"epochs": 1.5}, {"withheld": -0.1}, {"withheld": 1.0}])
def test_an_assignment_is_of_whole_epochs_and_a_share(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(given))):
        Assignment(**given)
    assert Assignment(np.int64(2), 0.0).epochs == 2


def test_a_policy_may_choose_lazily_and_draws_anew_in_every_round(host: ClientHost) -> None:
    def lazily(server_round: int, table: ClientTable, num: int, generator: np.random.Generator) -> Any:
        return (client for client in generator.choice(table.clients, num, replace=False))

    trial, _ = run(host, settings_of(selection=unruly(choose=lazily)))
    assert np.count_nonzero(trial.clients["rounds"]) > 3
    assert not trial.notes


def test_who_can_never_answer_is_not_in_the_table() -> None:
    """Of 40, 17, 1, 12, 0, 33 and 2 rows three quarters of four fifths train: 24, 10 or 11, 1, 7 or 8, 0, 19 or 20, 1.

    Of those that do not abstain, client 5 is late: three can train, and no more are asked for.
    """
    release, slow = Release(5, "abstain"), {5: Device(shift_seconds=3.0)}
    federation = replace(uneven_federation(), release=release, devices=slow)
    settings = settings_of(num_sampled=4)
    settings = replace(settings, session=replace(settings.session, deadline_seconds=2.0))
    trial, reports = run(ClientHost(federation, QUERIES), settings)
    assert trial.clients.get("rounds") == (4, 4, 0, 4, 0, 0, 0)
    assert not trial.dropped_clients
    assert all(report.clients.tolist() == [0, 1, 3] for report in reports)  # the others are not measured either
    assert not trial.notes
    nobody, _ = run(ClientHost(replace(federation, release=Release(50, "abstain")), QUERIES), settings)
    assert nobody.status == "failed"
    assert "selection.kind=recorder" in str(nobody.error)


def test_who_is_corrupted_measures_its_own_rows() -> None:
    """The report is of what a client sees, labels moved and all, not of what the rows were before."""
    assert CORRUPTED in ABLE
    settings = settings_of(num_rounds=1, selection=Choosing(fixed=(0, 1, 3)))
    hosts = (ClientHost(replace(uneven_federation(), **own), QUERIES) for own in ({}, {"transforms": {}}))
    (report,), (other,) = (run(host, settings)[1] for host in hosts)
    differs = report.clients[report.training.cross_entropy != other.training.cross_entropy].tolist()
    assert CORRUPTED in differs
    assert not {0, 1, 3} & {*differs}
