"""What holds of every strategy with a client algorithm: loop or block, hosts or driver, at once or resumed, on Ray."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedscout.detectors.queries import CLIENT_QUERIES
from fedscout.engine.client.host import ClientHost
from fedscout.engine.client.updates import GatheredUpdates
from fedscout.engine.config import HostDevice
from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientResults, ClientUpdate, LocalRun
from fedscout.engine.data.client import Samples
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.grid.ray_grid import RayGrid, start_hosts
from fedscout.engine.messages import contents
from fedscout.engine.messages.calls import EngineNeeds, HostCall
from fedscout.engine.models.layout import ModelFactory
from fedscout.engine.training.loop import RowsWork
from fedscout.engine.trials.trial import run_trial
from fedscout.strategies import CHOSEN_BY_NAME_KINDS, STRATEGIES, CustomSpec, StrategySpec, parse_strategy
from tests.engine.choices import FLOWER_CHOICES, spec_of as flower_spec
from tests.engine.federations import QUERIES, dense, normalised, quantities, uneven_federation, wide, with_server_rows
from tests.engine.trials.test_resume import assert_all_same, assert_going_on, assert_same
from tests.ray_processes import NUM_HOSTS
from tests.strategies.by_hand import SIZES, host_of, result_of, spec_of
from tests.strategies.rounds import made

METHODS: Mapping[str, StrategySpec] = {
    "fedprox": made("fedprox", proximal_mu=0.3),
    "scaffold by rows": made("scaffold", sample_scaling="num-examples", server_learning_rate=0.8),
    "fednova, proximal": made("fednova", proximal_mu=0.3, sample_scaling="uniform"),
    "moon": made("moon", contrast=2.0),
    "fedrep": made("fedrep", head_epochs=2),
    "fine_tuning": made("fine_tuning", tuning_epochs=2),
    "fedbabu": made("fedbabu", tuning_epochs=2),
    "mfedbn, overwritten": made("mfedbn", batch_norm="overwritten"),
    "fedex": made("fedex", num_configurations=4),
    "fedpop": made("fedpop", num_configurations=4, evolve_every=1),
    **{kind: made(kind) for kind in ("scaffold", "fednova", "fedbn", "mfedbn", "ditto", "feddyn", "fedlc", "fedper")},
    **{kind: made(kind) for kind in ("local", "fedsam", "fedrs", "symmetric_loss", "pfedme", "fedrod", "fedbio")},
}
MODELS: Mapping[str, ModelFactory] = {"fedbn": normalised, "mfedbn": normalised, "mfedbn, overwritten": normalised}
"""Of methods that need another net than the dense one."""

OTHERS: Mapping[str, StrategySpec] = {
    "rfa": made("rfa"),
    "centered_clipping": made("centered_clipping", clipping_radius=0.05),  # clips, or what is kept would not matter
    "fedexp": made("fedexp"),
    "feddf": made("feddf", distillation_steps=24, distillation_rate=2e-3, distillation_batch=16),
    "rhfl": made("rhfl"),
    "dp_fedavg": made("dp_fedavg", clipping_norm=0.3),
    "dp_fedavg, adaptive": made(
        "dp_fedavg",
        around={"kind": "fedadam", "sample_scaling": "uniform"},
        clipping="adaptive",
        clipped_count_stddev=1.0,
        clipping_norm=0.3,
    ),
    **{
        f"communities of {inside}": made("communities", inside=inside, num_communities=2)
        for inside in ("fedavg", "fedadam", "scaffold", "fedper", "fedexp")
    },
    "communities by updates": made("communities", grouped_by="updates", inside="fedmedian"),
    **{pair: parse_strategy(pair) for pair in ("fedyogi+fedlc", "krum+fedper", "fedexp+fedlc", "qfedavg+ditto")},
}
"""Strategies without a client algorithm of their own that a block of clients would train, and pairs."""

EVERY: Mapping[str, StrategySpec] = {**METHODS, **OTHERS}

IN_THE_LOOP = frozenset(("fedsam", "symmetric_loss"))
"""Methods that are trained client by client on any model."""

HOSTS: dict[ModelFactory, ClientHost] = {}


def host_for(name: str) -> ClientHost:
    model = MODELS.get(name, dense)
    if model not in HOSTS:
        HOSTS[model] = host_of(model)
    return HOSTS[model]


def sampled(name: str) -> dict[str, int]:
    """Return how many clients a round trains, where it is all of them."""
    return {"num_sampled": len(SIZES)} if name in ("rhfl", "communities by updates") else {}


def test_the_table_is_complete() -> None:
    with_clients = {kind for kind in CHOSEN_BY_NAME_KINDS if STRATEGIES[kind]().client_algorithm() is not None}
    with_clients.remove("rhfl")  # which trains all clients in every round: test_server_rows.py
    assert {spec.kind for spec in METHODS.values()} == {"fedprox", *with_clients}
    assert all(STRATEGIES[kind].paper for kind in CHOSEN_BY_NAME_KINDS)


def check_backends(host: ClientHost, name: str) -> None:
    """MOON for two rounds: later, the direction of a representation that is nearly zero magnifies rounding."""
    rounds = 2 if name == "moon" else 5
    loop, other = (result_of(host, METHODS[name], backend=backend, num_rounds=rounds) for backend in ("loop", "auto"))
    np.testing.assert_allclose(loop.vector, other.vector, rtol=0, atol=1e-6)
    assert list(loop.rounds["accuracy"]) == list(other.rounds["accuracy"])
    assert np.abs(loop.vector - host.initial_vector(3)).max() > 1e-3 or METHODS[name].kind == "local"


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", [name for name in METHODS if name not in IN_THE_LOOP and name not in MODELS])
def test_the_loop_is_the_block(name: str) -> None:
    check_backends(host_for(name), name)


@pytest.fixture(scope="module")
def in_lanes() -> ClientHost:
    """A host as on a GPU, on the core."""
    federation = with_server_rows(uneven_federation(wide, SIZES), labelled=True)
    host = ClientHost(federation, QUERIES, HostDevice("cpu", in_lanes=True))
    assert host.facts().trained_on == "cpu, 8 clients in parallel"
    return host


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", [name for name in METHODS if name not in MODELS])
def test_the_loop_is_lanes(in_lanes: ClientHost, name: str) -> None:
    check_backends(in_lanes, name)


def test_the_contrast_counts_for_quantities_in_lanes_too() -> None:
    host = ClientHost(quantities(), QUERIES, HostDevice("cpu", in_lanes=True))
    loop, lanes = (result_of(host, METHODS["moon"], backend=name, num_rounds=2) for name in ("loop", "auto"))
    np.testing.assert_allclose(loop.vector, lanes.vector, rtol=0, atol=1e-6)
    assert np.abs(loop.vector - result_of(host, parse_strategy("fedavg"), num_rounds=2).vector).max() > 1e-3


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", EVERY)
def test_means_formed_in_the_driver_have_the_bits_of_those_formed_on_hosts(name: str) -> None:
    on_hosts, in_driver = (
        result_of(host_for(name), EVERY[name], merge_on_hosts=merged, **sampled(name)) for merged in (True, False)
    )
    assert_all_same(on_hosts, in_driver)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", EVERY)
def test_a_trial_that_is_resumed_has_the_same_bits(name: str, tmp_path: Path) -> None:
    assert_going_on(spec_of(EVERY[name], **sampled(name)), host_for(name), tmp_path, stopped_in=3)


@pytest.mark.stress
@pytest.mark.ray
@pytest.mark.parametrize("num_hosts", NUM_HOSTS)
@pytest.mark.parametrize("model", [dense, pytest.param(normalised, marks=pytest.mark.stress)])
def test_ray_s_hosts_give_the_local_grid_s_bits(ray_session: None, model: ModelFactory, num_hosts: int) -> None:
    federation = with_server_rows(uneven_federation(model, SIZES, min_release=1), labelled=True)
    hosts = start_hosts(federation, CLIENT_QUERIES, num_hosts)
    for name in [name for name in EVERY if MODELS.get(name, dense) is model]:
        spec = spec_of(EVERY[name], **sampled(name))
        by_ray = run_trial(spec, RayGrid(hosts, spec.session))
        assert_all_same(by_ray, result_of(host_for(name), EVERY[name], **sampled(name)))
    hosts.stop()


def test_a_client_that_fails_in_a_block_fails_alone_and_keeps_its_state() -> None:
    """A client without training rows; the others' controls add up without it."""
    host = host_of(sizes=(*SIZES[:4], 0))
    spec = spec_of(made("scaffold"), num_sampled=5, num_rounds=2)
    grid = LocalGrid(host, session=spec.session)
    result = run_trial(spec, grid)
    assert result.status == "completed"
    assert list(result.dropped_clients) == ["1:4", "2:4"]
    assert sorted(grid.client_states) == [0, 1, 2, 3]


def test_what_weighs_a_mean_is_no_more_than_a_client_s_rows() -> None:
    """Exact sums leave room for so much; the client that claims more fails, and with all of them the trial."""
    call = HostCall((0, 1, 2), spec_of(made("fednova")).session, {"reply": "merged"}, np.zeros(2, np.float32))
    gathered = GatheredUpdates(call, max_weight=10, keeps_state=False, num_trainable=2)
    rows = Samples(np.zeros((4, 1), np.float32), np.zeros(4, np.int64), np.arange(4))
    for client, sums in enumerate(({"model-weight": 4.0}, {"model-weight": 4.5}, {})):
        work = RowsWork(client, np.random.default_rng(0), {}, rows)
        gathered.add([(work, ClientUpdate(np.ones(2, np.float32), 3, 0.5, {}, sums=sums))])
    results = gathered.results()
    assert results.clients == [0]
    for client, given in ((1, "4.5"), (2, "none")):
        assert "'model-weight'" in results.failures[client]
        assert results.failures[client].endswith(f"got {given}")


def test_the_documented_example_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anybody has ended anywhere, its anchor is the received model: the first round is FedProx's."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "client_algorithms.md").read_text()
    (tmp_path / "documented_anchor.py").write_text(text.partition("```python\n")[2].partition("```")[0])
    monkeypatch.syspath_prepend(tmp_path)
    host, anchored = host_for("anchored"), importlib.import_module("documented_anchor").AnchoredSpec
    assert_same(result_of(host, anchored(strength=0.0)), result_of(host, made("fedavg")))
    both = anchored(strength=0.3), METHODS["fedprox"]
    assert_same(*(result_of(host, strategy, num_rounds=1) for strategy in both))
    assert not np.array_equal(*(result_of(host, strategy).vector for strategy in both))
    by_path = CustomSpec(path="documented_anchor:AnchoredSpec", values={"strength": 0.3})
    assert_same(result_of(host, by_path), result_of(host, anchored(strength=0.3)))


@dataclass(frozen=True)
class WithAuxiliary(ClientAlgorithm):
    """FedAvg's client, who sends what it has trained a second time, and a sum."""

    @property
    def auxiliary(self) -> Mapping[str, str]:
        return {"twice": "num-examples"}

    def train(self, run: LocalRun) -> ClientResults:
        trained = run.descend(run.received)
        twice = {"twice": 2 * trained.vectors}
        return ClientResults(trained, trained.vectors, auxiliary=twice, sums={"rows": run.num_examples.double()})


@dataclass(frozen=True)
class Misshapen(ClientAlgorithm):
    """Gives one vector for all clients."""

    def train(self, run: LocalRun) -> ClientResults:
        trained = run.descend(run.received)
        return ClientResults(trained, trained.vectors[0])


def test_what_is_sent_and_given_beside_a_model_is_checked() -> None:
    spec = flower_spec(replace(FLOWER_CHOICES["fedavg"], algorithm=Misshapen()))
    result = run_trial(spec, LocalGrid(host_for("fedavg"), session=spec.session))
    assert re.search(r"Misshapen .*\(1, 53\), got \(53,\)$", str(result.error))
    grid = LocalGrid(host_for("scaffold"), session=spec_of(made("scaffold")).session)
    for vector, named in (
        (np.zeros((7, 1), np.float32), "'control'.*7, 1"),
        (np.full(53, np.inf), "'control'.*finite"),
    ):
        with pytest.raises(ValueError, match=named):
            grid.push_messages(messages(grid.initial_vector(3), 1, control=vector))


@pytest.mark.parametrize("name", FLOWER_CHOICES)
def test_auxiliary_vectors_disturb_none_of_flower_s_strategies(name: str) -> None:
    """They lie where no strategy looks: the same model to the last bit, replies merged or not."""
    plain = replace(flower_spec(FLOWER_CHOICES[name]), num_sampled=8)
    sending = replace(plain, strategy=replace(FLOWER_CHOICES[name], algorithm=WithAuxiliary()))
    results = [run_trial(spec, LocalGrid(host_for(name), session=spec.session)) for spec in (plain, sending)]
    assert results[0].error is None
    assert_same(*results)


def messages(vector: Any, clients: int = 8, **auxiliary: Any) -> list[Message]:
    """Return what a round sends to clients."""
    contents.claim_task_identity()
    content = RecordDict({"arrays": contents.flat_record(vector), "config": ConfigRecord({"server-round": 1})})
    contents.put_auxiliary(content, auxiliary)
    return [Message(content, contents.node_of(client), "train") for client in range(clients)]


@pytest.mark.parametrize("merge_on_hosts", [True, False])
@pytest.mark.parametrize("replies", ["merged", "individual"])
def test_auxiliary_vectors_and_sums_come_with_the_replies(replies: Any, merge_on_hosts: bool) -> None:
    needs = EngineNeeds(replies=replies)
    spec = flower_spec(replace(FLOWER_CHOICES["fedavg"], wants=needs, algorithm=WithAuxiliary()))
    grid = LocalGrid(host_for("fedavg"), session=spec.session, merge_on_hosts=merge_on_hosts)
    replied = list(grid.send_and_receive(messages(grid.initial_vector(3))))
    assert len(replied) == (1 if replies == "merged" else 8)
    for reply in replied:
        (sent,) = contents.replied_auxiliary(reply.content).items()
        model, metrics = contents.read_array(reply.content["arrays"]["flat"]), reply.content["metrics"]
        assert sent[0] == "twice"
        np.testing.assert_allclose(sent[1], 2 * model, rtol=0, atol=1e-6)
        assert metrics["rows"] == metrics["num-examples"]
        assert metrics["num-steps"] >= 2 * metrics["num-clients"]


def test_a_model_is_scored_anew_where_clients_have_changed() -> None:
    """Known scores are those of one version of states; without states of its own a model keeps its scores."""
    for strategy, changes in ((made("local"), True), (made("scaffold"), False)):
        spec = spec_of(strategy)
        grid = LocalGrid(host_for(strategy.kind), session=spec.session)
        arrays = contents.flat_record(grid.initial_vector(3))
        before, again = grid.evaluate_all(arrays), grid.evaluate_all(arrays)
        list(grid.send_and_receive(messages(grid.initial_vector(3))))
        after = grid.evaluate_all(arrays)
        assert before is again
        assert (before is not after) == changes
        assert (before.accuracy != after.accuracy) == changes
