"""The driver of a real federation, over Flower apps in this process: the same calls as on a SuperLink."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdam
from safetensors.numpy import load_file

from fedscout import RealFederation, client_app
from fedscout.detectors import CLIENT_QUERIES
from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.client_table import SettingsCell, SettingsTable
from fedscout.engine.errors import ConfigurationError, DataError, LogError, StrategyError, TrialError
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.messages.contents import claim_task_identity
from fedscout.engine.nodes.policy import OwnerPolicy
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.trial import run_trial
from fedscout.experiments.config import StudyConfig, load_config
from fedscout.experiments.deployment.client import Agreement
from fedscout.experiments.federation import build_federation
from fedscout.experiments.studies.checks import client_table_of
from fedscout.experiments.studies.result import read_study
from fedscout.experiments.studies.runner import LocalRunner
from fedscout.experiments.studies.workflow import measure
from fedscout.search.client_settings import write_settings_table
from fedscout.strategies import parse_strategy
from tests.engine.nodes.node_link import NodeLink
from tests.kits.refusals import refused

TRUSTING = OwnerPolicy(small_clients="train")
SETTINGS = [
    *("federation.num_clients=3", "federation.max_rows=400", "training.num_rounds=3", "engine.grid=local"),
    *("search.kind=random", "search.budget=2", "search.generation_size=2", "search.tuned_baseline=false"),
    *("search.confirmation_seeds=2", "search.confirmation_top=1"),
]


@pytest.fixture(autouse=True)
def _identity() -> None:
    claim_task_identity()


@pytest.fixture(scope="module")
def config() -> StudyConfig:
    """A small study of digits."""
    return load_config(SETTINGS, None)


@pytest.fixture(scope="module")
def agreement(config: StudyConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agreement that it amounts to, as a file."""
    path = tmp_path_factory.mktemp("agreed") / "federation.json"
    path.write_text(Agreement.of_study(config).text)
    return path


def linked(app: ClientApp, *configs: dict[str, Any]) -> NodeLink:
    """Return a grid with a node for each configuration."""
    link = NodeLink()
    for number, config in enumerate(configs):
        link.apps[900 - number] = (app, Context(1, 900 - number, config, RecordDict(), {}))
    return link


@pytest.fixture
def link(agreement: Path) -> NodeLink:
    """Nodes with the rows of the study's simulated clients."""
    return linked(client_app(agreement, policy=TRUSTING), *({"partition-id": client} for client in range(3)))


def met(link: NodeLink, agreement: Path, folder: Path, clients: int = 3, **options: Any) -> RealFederation:
    """Return a driver that has met so many clients; it writes to `out` in a folder."""
    driver = RealFederation(link, agreement, folder / "out", **options)
    assert driver.wait_for(clients, patience=5) == clients
    return driver


@pytest.fixture
def federation(agreement: Path, link: NodeLink, tmp_path: Path) -> RealFederation:
    """A driver that has met the three clients."""
    return met(link, agreement, tmp_path)


def simulated_trial(
    config: StudyConfig, strategy: dict[str, Any], num_rounds: int = 3, **session: Any
) -> tuple[Trial, LocalGrid]:
    """Return what a simulation of the three clients' training finds, and its grid."""
    settings = TrialSettings(
        parse_strategy(strategy, Cohort(3, 3, 0.2)),
        *(num_rounds, 3, replace(config.training.session(config.seed), **session)),
        keep_model=True,
    )
    grid = LocalGrid(build_federation(config.federation, config.model), CLIENT_QUERIES, settings.session)
    return run_trial(settings, grid), grid


@pytest.mark.slow
def test_training_has_the_simulations_bits_and_leaves_a_study(
    agreement: Path, link: NodeLink, config: StudyConfig, tmp_path: Path
) -> None:
    federation = met(link, agreement, tmp_path, round_timeout=45.0)
    real = federation.train({"kind": "fedadam", "eta": 0.05})
    trial, grid = simulated_trial(config, {"kind": "fedadam", "eta": 0.05})
    written = load_file(tmp_path / "out" / "model.safetensors")
    named = grid.facts.layout.split(trial.vector)
    assert {name: array.tobytes() for name, array in named.items()} == {n: a.tobytes() for n, a in written.items()}
    assert real.rounds["accuracy"] == trial.rounds["accuracy"]
    study = read_study(tmp_path / "out")
    assert not study.faults
    assert [(trial.strategy, trial.num_rounds) for trial in study.trials] == [("fedadam", 3)]
    rounds = pd.read_parquet(tmp_path / "out" / "rounds.parquet")
    assert rounds["round_accuracy"].tolist() == list(trial.rounds["accuracy"])


def test_what_is_kept_is_told_before_anything_trains(agreement: Path, link: NodeLink, tmp_path: Path) -> None:
    told: list[str] = []
    federation = met(link, agreement, tmp_path, tell=told.append)
    heard = len(link.heard)
    with refused(StrategyError, key="a strategy whose clients share something"):
        federation.train({"kind": "local"})
    assert len(link.heard) == heard
    trial = federation.train({"kind": "fedper"}, rounds=1)
    (kept,) = (line for line in told if "the saved model is the global one" in line)
    assert kept.removeprefix("note: ") in trial.notes


@pytest.mark.slow
def test_detection_is_the_simulations(federation: RealFederation, config: StudyConfig, agreement: Path) -> None:
    simulated = LocalRunner(ClientHost(build_federation(config.federation, config.model), CLIENT_QUERIES))
    names = federation.agreement.names
    assert federation.detect().without_timings() == measure(simulated, config, names).without_timings()


@pytest.mark.slow
@pytest.mark.parametrize("by", ["rules", "search"])
def test_the_whole_program_begins_nothing_twice(agreement: Path, link: NodeLink, tmp_path: Path, by: Any) -> None:
    def run() -> tuple[dict[str, Any], tuple[float, ...]]:
        federation = met(link, agreement, tmp_path)
        chosen = federation.choose(federation.detect(), by=by)
        return chosen, federation.train(chosen).rounds["accuracy"]

    first = run()
    sent = len(link.heard)
    assert run() == first
    assert len(link.heard) - sent == 2 * 3, "a greeting and its answer, a client"
    assert (tmp_path / "out" / "model.pt").is_file()


@pytest.mark.slow
def test_clients_that_come_back_keep_their_numbers(agreement: Path, link: NodeLink, tmp_path: Path) -> None:
    met(link, agreement, tmp_path)
    link.apps = {node + 1000 * (node % 2): app for node, app in link.apps.items()}
    last = link.apps.pop(min(link.apps))
    again = met(link, agreement, tmp_path, 2)
    link.apps[5] = last
    trial = again.train({"kind": "fedavg"})
    assert trial.clients["id"] == (0, 1, 2)
    names = [told.introduction.name for told in again._roster.members]
    assert names == ["0", "1", "2"]


@pytest.mark.slow
def test_a_search_that_costs_more_than_is_allowed_is_refused_with_what_it_costs(federation: RealFederation) -> None:
    report = federation.detect()
    with refused(ConfigurationError, key="the search", given="21"):
        federation.choose(report, by="search", max_rounds=20)
    with refused(ConfigurationError, key="the search"):
        federation.choose(report, by="search", max_bytes=1000)


def test_a_damaged_file_of_clients_is_refused(agreement: Path, link: NodeLink, tmp_path: Path) -> None:
    met(link, agreement, tmp_path)
    (tmp_path / "out" / "clients.json").write_text('{"clients": [{"name": 7}]}')
    with refused(LogError, key="clients.json"):
        RealFederation(link, agreement, tmp_path / "out").wait_for(3, patience=5)


def test_owners_that_refuse_training_leave_nothing_to_train(agreement: Path, tmp_path: Path) -> None:
    app = client_app(agreement, policy=OwnerPolicy(trains=False))
    federation = met(linked(app, {"partition-id": 0}, {"partition-id": 1}), agreement, tmp_path, 2)
    with pytest.raises(TrialError, match="owner"):
        federation.train({"kind": "fedavg"})


@pytest.mark.slow
def test_a_client_of_another_agreement_is_told_so(config: StudyConfig, agreement: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(Agreement.of_study(config).model_copy(update={"seed": 7}).text)
    link = linked(client_app(other, policy=TRUSTING), {"partition-id": 0})
    with refused(DataError, key="at least 1 clients"):
        RealFederation(link, agreement, tmp_path / "out").wait_for(1, patience=0.1)


def rows_of(generator: np.random.Generator, num_rows: int) -> pd.DataFrame:
    """Return a table of one client: two columns of numbers, one of categories, a class."""
    frame = pd.DataFrame({"age": generator.normal(50, 10, num_rows), "dose": generator.normal(0, 1, num_rows)})
    frame["ward"] = generator.choice(["north", "south"], num_rows)
    frame["outcome"] = np.where(frame["dose"] + (frame["ward"] == "north") > 0.5, "well", "ill")
    return frame


def test_own_tables_train_as_they_would_have_in_one_table(tmp_path: Path) -> None:
    """What the simulation knows as natural clients are here nodes with a file each."""
    generator = np.random.default_rng(3)
    tables = {name: rows_of(generator, 60) for name in ("a", "b", "c")}
    whole = pd.concat([table.assign(site=name) for name, table in tables.items()])
    whole.to_csv(tmp_path / "all.csv", index=False)
    settings = [
        *(f"federation.dataset={tmp_path / 'all.csv'}", "federation.label=outcome", "federation.client_column=site"),
        *("training.num_rounds=2", "engine.grid=local"),
    ]
    config = load_config(settings, None)
    path = tmp_path / "federation.json"
    path.write_text(Agreement.of_study(config).text)
    simulated = build_federation(config.federation, config.model)
    for client, (name, table) in enumerate(tables.items()):  # a simulation shuffles what a client holds
        table.iloc[simulated.partition.client(client) - 60 * client].to_csv(tmp_path / f"{name}.csv", index=False)
    nodes = ({"data": str(tmp_path / f"{name}.csv"), "name": name} for name in tables)
    real = met(linked(client_app(path), *nodes), path, tmp_path).train({"kind": "fedavg"})
    trial, _ = simulated_trial(config, {"kind": "fedavg"}, num_rounds=2)
    assert (real.rounds["accuracy"], real.rounds["loss"]) == (trial.rounds["accuracy"], trial.rounds["loss"])


@pytest.mark.slow
def test_a_table_of_settings_goes_one_way_and_no_message_tells_a_client_s_rows(tmp_path: Path) -> None:
    """The clients hold 185, 84 and 131 rows; no answer holds any of these numbers, or those of their parts.

    A client's score counts as one row, so the federation's is the mean over clients.
    """
    cells = [SettingsCell(0.5, rows, 0.3, 8, epochs) for rows, epochs in ((60, 3), (140, 1))]
    write_settings_table(tmp_path / "hrt.json", SettingsTable(tuple(cells)), {"num_classes": 10})
    table = ["client_settings.kind=table", f"client_settings.path={tmp_path / 'hrt.json'}"]
    config = load_config([*SETTINGS, *table], None)
    path = tmp_path / "federation.json"
    path.write_text(Agreement.of_study(config).text)
    link = linked(client_app(path, policy=TRUSTING), *({"partition-id": client} for client in range(3)))
    real = met(link, path, tmp_path).train({"kind": "fedavg"})
    simulated = build_federation(config.federation, config.model)
    sizes = simulated.partition.sizes
    documents = [str(reply.content["document"]) for reply in link.heard[1::2]]
    assert sum("TrainResults" in text for text in documents) == 9
    parts = {int(size * share) + more for size in sizes for share in (1, 0.8, 0.2) for more in (0, 1)}
    for text in documents:
        assert not any(re.search(rf"[ \[]{rows}[],}}]", text) for rows in parts)
    trial, _ = simulated_trial(config, {"kind": "fedavg"}, client_table=client_table_of(config, simulated))
    np.testing.assert_allclose(real.rounds["train_loss"], trial.rounds["train_loss"], rtol=1e-5)
    np.testing.assert_allclose(real.rounds["accuracy"][-1], np.mean(trial.clients["accuracy"]), rtol=1e-5)
    assert real.clients["num_examples"] == (1, 1, 1)


@pytest.mark.slow
def test_no_row_leaves_a_client(federation: RealFederation, config: StudyConfig, link: NodeLink) -> None:
    """All bytes and texts of every message that a client sent are searched for its rows, in any type of number."""
    federation.train(federation.choose(federation.detect(), by="search"))
    simulated = build_federation(config.federation, config.model)
    rows = simulated.features[simulated.partition.rows]
    replies = link.heard[1::2]
    kinds = {message.metadata.message_type for message in replies}
    assert kinds == {"query.fedscout", "train.fedscout", "evaluate.fedscout"}
    sent = b"".join(array.data for reply in replies for array in reply.content.array_records["values"].values())
    told = " ".join(str(reply.content.config_records["document"]["document"]) for reply in replies)
    for row in rows[:, 16:48]:  # the middle of a picture, where few pixels are empty
        assert row.astype(np.float32).tobytes() not in sent
        assert row.astype(np.float64).tobytes() not in sent
        assert ", ".join(map(str, row.tolist())) not in told
    labels = [simulated.labels[simulated.partition.client(client)] for client in range(3)]
    assert not any(each.astype(kind).tobytes() in sent for each in labels for kind in (np.int64, np.int32, np.int8))


def test_flowers_own_strategy_drives_the_same_clients(config: StudyConfig, agreement: Path, link: NodeLink) -> None:
    """As the page has it, with arrays by the model's names: the models are those of a simulation of the strategy."""
    chosen = {"kind": "fedadam", "eta": 0.05, "client_learning_rate": 0.1}
    rate = config.training.session(config.seed).training.model_copy(update={"learning_rate": 0.1})
    trial, grid = simulated_trial(config, chosen, num_rounds=2, training=rate)
    layout, first = grid.facts.layout, grid.initial_vector(config.seed)
    initial = ArrayRecord({name: Array(array) for name, array in layout.split(first).items()})
    strategy = FedAdam(eta=0.05, beta_1=0.9, beta_2=0.99, tau=1e-3, min_available_nodes=3)
    result = strategy.start(cast(Grid, link), initial, num_rounds=2, train_config=ConfigRecord({"learning-rate": 0.1}))
    trained = layout.join({name: array.numpy() for name, array in result.arrays.items()})
    np.testing.assert_allclose(trained, trial.vector, atol=2e-6)
    assert "accuracy" in result.evaluate_metrics_clientapp[2]
