"""The app that is written: Python that a person would read, of what a study chose."""

from __future__ import annotations

import io
import json
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, RecordDict
from PIL import Image
from safetensors.numpy import load_file

from fedscout.engine.errors import ConfigurationError, DataError, LogError, StrategyError
from fedscout.engine.models.flat import new_model
from fedscout.experiments.config import load_config
from fedscout.experiments.deployment.client import Agreement, client_federation
from fedscout.experiments.deployment.driver import Program, check_new, winner_of, write_app
from fedscout.experiments.trained import DESCRIPTION_FILE, what_is_kept, write_model
from fedscout.search.confirmation.confirmation import Candidate, confirm
from fedscout.strategies import parse_strategy
from tests.kits.refusals import refused

STRATEGY = {"kind": "fedadam", "eta": 0.1, "client_learning_rate": 0.4}


@pytest.fixture(scope="module")
def agreement() -> Agreement:
    """Of digits."""
    return Agreement.of_study(load_config(["federation.max_rows=200", "training.num_rounds=7"], None))


def source(folder: Path, page: str) -> dict[str, Any]:
    """Return the names that a page of the app defines, without its functions' having run."""
    text = (folder / folder.name / f"{page}.py").read_text()
    names: dict[str, Any] = {"__file__": str(folder / folder.name / f"{page}.py")}
    exec(compile(text, page, "exec"), names)  # what was just written
    return names


def test_the_winner_stands_in_the_drivers_page(agreement: Agreement, tmp_path: Path) -> None:
    folder = write_app(tmp_path / "ward", agreement, Program(STRATEGY))
    names = source(folder, "server_app")
    assert names["STRATEGY"] == STRATEGY
    assert {"app", "main"} <= names.keys()
    assert "app" in source(folder, "client_app")
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    config = project["tool"]["flwr"]["app"]["config"]
    assert config["rounds"] == 7
    assert Agreement.read(folder / "ward" / "federation.json") == agreement


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_flower_takes_the_folder_for_an_app(agreement: Agreement, tmp_path: Path) -> None:
    from flwr.cli.build import build_fab_from_disk

    bundle = build_fab_from_disk(write_app(tmp_path / "ward", agreement, Program(STRATEGY)))
    with zipfile.ZipFile(io.BytesIO(bundle)) as packed:
        names = set(packed.namelist())
    assert {f"ward/{name}" for name in ("federation.json", "server_app.py", "client_app.py")} < names


@pytest.mark.parametrize("folder", ["2nd", "___", "a" * 60])
def test_an_app_is_called_as_its_folder_which_must_be_a_name(folder: str) -> None:
    assert check_new(Path("My App-2")) == "my_app_2"
    with refused(ConfigurationError, key="--out"):
        check_new(Path(folder))


def test_nothing_is_written_over(agreement: Agreement, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with refused(ConfigurationError, key="--out"):
        write_app(tmp_path, agreement, Program(STRATEGY))


def study(folder: Path, **result: Any) -> Path:
    """Write what a finished study leaves, as far as an app reads it."""
    config = load_config([], None)
    claim = {"config_hash": config.digest(), "config": config.identity(), "versions": {}}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(claim))
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def candidate(role: Any, strategy: str, rate: float, score: float) -> Candidate:
    scores = (score, score + 0.01, score + 0.02)
    results = {"own": scores, "clean": scores, "failures": {}}
    return Candidate(role=role, name=strategy, strategy=strategy, parameters={}, learning_rate=rate, **results)


@pytest.mark.parametrize(
    ("verdict", "wanted"),
    [("better", {"kind": "krum"}), ("no difference", {"kind": "fedavg", "client_learning_rate": 0.4})],
)
def test_what_is_deployed_is_what_the_study_says_to_use(tmp_path: Path, verdict: str, wanted: dict[str, Any]) -> None:
    """A pick that was not confirmed gives way to the reference, at its own rate."""
    candidates = candidate("challenger", "krum", 0.2, 0.8), candidate("tuned-fedavg", "fedavg", 0.4, 0.7)
    confirmation = confirm((1, 2, 3), candidates, "own")
    confirmation = confirmation.model_copy(update={"verdict": verdict})
    best = {"strategy": "krum", "parameters": {}, "learning_rate": 0.2}
    config, strategy = winner_of(study(tmp_path, confirmation=confirmation.model_dump(mode="json"), best=best))
    assert strategy == wanted
    assert config.identity() == load_config([], None).identity()


def test_a_study_that_found_nothing_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(LogError) as caught:
        winner_of(study(tmp_path, confirmation=None, best=None))
    assert caught.value.faults[0].subject == str(tmp_path)
    with pytest.raises(LogError):
        winner_of(tmp_path / "nowhere")


def test_what_is_kept_is_told_where_it_is_not_all(agreement: Agreement) -> None:
    layout = new_model(agreement.factory, seed=0).layout
    inside: Any = {"kind": "communities", "inside": "fine_tuning"}
    kinds = ("fedadam+moon", "fedper", "fedbabu", "rhfl", inside)
    told = [what_is_kept(parse_strategy(kind), layout) for kind in kinds]
    assert told[0] is None
    assert len({*told}) == len(kinds)  # each has its own words
    for nothing_shared in ({"kind": "local"}, {"kind": "fedper", "personal_layers": 3}):  # of two layers
        with refused(StrategyError, key="a strategy whose clients share something"):
            what_is_kept(parse_strategy(nothing_shared), layout)


@pytest.mark.parametrize("num_models", [1, 3])
def test_each_model_is_written_and_no_former_one_stays(agreement: Agreement, tmp_path: Path, num_models: int) -> None:
    layout = new_model(agreement.factory, seed=0).layout
    vectors = np.random.default_rng(0).normal(size=(num_models, layout.size)).astype(np.float32)
    (tmp_path / "model_mine.pt").touch()
    for others in (vectors[0], np.concatenate([vectors, vectors])):
        write_model(tmp_path, agreement, others)
    write_model(tmp_path, agreement, vectors if num_models > 1 else vectors[0])
    names = ["model"] if num_models == 1 else [f"model_{place}" for place in range(num_models)]
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {
        "model_mine.pt",
        DESCRIPTION_FILE,
        *(f"{name}.{ending}" for name in names for ending in ("safetensors", "pt")),
    }
    for name, vector in zip(names, vectors, strict=True):
        written = load_file(tmp_path / f"{name}.safetensors")
        assert all(np.array_equal(written[tensor], array) for tensor, array in layout.split(vector).items())


# A client's rows become what the agreement says, or are refused in one line that stays with the client.


ONE_ROW = {"age": [1], "ward": ["north"], "outcome": ["ill"]}
COLUMNS = {"age": [30, 41, 52, 63] * 10, "ward": ["north", "south"] * 20, "outcome": ["ill", "well"] * 20}


@pytest.fixture(scope="module")
def table_agreement(tmp_path_factory: pytest.TempPathFactory) -> Agreement:
    """Of a table with a column of numbers, one of categories and two classes."""
    path = tmp_path_factory.mktemp("study") / "table.csv"
    pd.DataFrame(COLUMNS).to_csv(path, index=False)
    settings = [f"federation.dataset={path}", "federation.label=outcome", "federation.num_clients=2"]
    return Agreement.of_study(load_config(settings, None))


def rows(
    table_agreement: Agreement, given: Any, number: int = 0, **node: Any
) -> tuple[np.ndarray[Any, Any], list[int]]:
    """Return the features and labels of a client."""
    context = Context(1, 7, node, RecordDict(), {})
    federation = client_federation(table_agreement, number, context, None if given is None else lambda _: given)
    assert federation.partition.sizes.tolist() == [0] * number + [len(federation.labels)]
    return federation.features, federation.labels.tolist()


def test_a_number_is_standardised_by_the_study_and_a_category_has_its_place(table_agreement: Agreement) -> None:
    frame = pd.DataFrame({"ward": ["south", "west"], "age": [46.5, np.nan], "outcome": ["well", "ill"]})
    features, labels = rows(table_agreement, frame, number=2)
    deviation = np.std(COLUMNS["age"])
    assert table_agreement.feature_names == ("age", "ward=north", "ward=south")
    np.testing.assert_allclose(features, [[(46.5 - 46.5) / deviation, 0, 1], [0, 0, 0]], atol=1e-7)
    assert labels == [1, 0]
    alone = pd.DataFrame({"age": [np.nan] * 2, "ward": ["north"] * 2, "outcome": "ill"})  # one class, an empty column
    features, labels = rows(table_agreement, alone)
    assert (features.tolist(), labels) == ([[0, 1, 0]] * 2, [0, 0])
    features, labels = rows(table_agreement, (np.eye(3), ["well", "ill", "ill"]))  # arrays are taken as they are
    assert (features.tolist(), labels) == (np.eye(3).tolist(), [1, 0, 0])


@pytest.mark.parametrize(
    ("given", "key", "names"),
    [
        (pd.DataFrame(ONE_ROW).drop(columns="ward"), "table 'DataFrame'", "ward"),
        (pd.DataFrame({**ONE_ROW, "age": ["old"]}), "column 'age' of table 'DataFrame'", ""),
        (pd.DataFrame({**ONE_ROW, "outcome": ["dead"]}), "a client's rows", "got dead"),
        (pd.DataFrame(ONE_ROW).drop(columns="outcome"), "label", "got 'outcome'"),
        ((np.zeros((3, 4)), np.zeros(3)), "an array of rows", "(rows, 3)"),
        ((np.full((1, 3), np.nan), ["ill"]), "an array of rows", "finite"),
        ((np.zeros((0, 3)), []), "a client", "got none"),
    ],
)
def test_rows_that_are_not_as_agreed_are_refused(table_agreement: Agreement, given: Any, key: str, names: str) -> None:
    with refused(DataError, key=key, names=names):
        rows(table_agreement, given)


def test_a_file_of_the_node_configuration_is_read(table_agreement: Agreement, tmp_path: Path) -> None:
    frame = pd.DataFrame(COLUMNS).rename(columns={"outcome": "result"})
    frame.to_parquet(tmp_path / "mine.parquet")
    _, labels = rows(table_agreement, None, data=str(tmp_path / "mine.parquet"), label="result")
    assert labels == [0, 1] * 20


@pytest.mark.parametrize(("node", "key"), [({}, "a client"), ({"partition-id": 99}, "partition-id")])
def test_a_node_without_rows_is_told_what_to_give(table_agreement: Agreement, node: dict[str, Any], key: str) -> None:
    with refused(DataError, key=key, given=node.get("partition-id", node), names="partition-id"):
        rows(table_agreement, None, **node)


def test_pictures_of_one_class_are_read_at_the_agreed_size(tmp_path: Path) -> None:
    for folder, value in (("all/cat", 0), ("all/dog", 255), ("mine/dog", 255)):
        (tmp_path / folder).mkdir(parents=True)
        for number in range(3):
            Image.fromarray(np.full((9, 9), value, np.uint8)).save(tmp_path / folder / f"{number}.png")
    settings = [f"federation.dataset={tmp_path / 'all'}", "federation.image_size=8", "federation.num_clients=1"]
    table_agreement = Agreement.of_study(load_config([*settings, "federation.partition.kind=iid"], None))
    features, labels = rows(table_agreement, None, data=str(tmp_path / "mine"))
    assert features.shape == (3, 1, 8, 8)
    assert features.min() == 1.0
    assert labels == [1, 1, 1]


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("kind", ["search.kind=multishot_llm"]),
        ("objective", ["search.objective=time_to_accuracy", "search.target=0.9"]),
        ("warm_start", ["search.warm_start=[runs]"]),
    ],
)
def test_what_real_clients_cannot_do_is_refused_before_they_connect(key: str, settings: list[str]) -> None:
    with refused(ConfigurationError, key=f"search.{key}"):
        Agreement.of_study(load_config(["federation.max_rows=200", *settings], None))


def test_a_quantity_or_players_can_have_no_agreement() -> None:
    for dataset in ("diabetes", "cartpole"):
        with refused(ConfigurationError, key="a real federation"):
            Agreement.of_study(load_config([f"federation.dataset={dataset}"], None))


def test_an_agreement_that_is_none_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"kind": "table"}')
    for name in ("none.json", "bad.json"):
        with refused(ConfigurationError, key=name):
            Agreement.read(tmp_path / name)


def test_an_agreement_holds_no_row(table_agreement: Agreement) -> None:
    """Of the column of numbers it tells moments, and none of its values."""
    columns = table_agreement.encoding["columns"]
    assert columns["age"] == {"count": 40, "mean": 46.5, "squares": 40 * np.var(COLUMNS["age"])}
    assert columns["ward"]["counts"] == {"north": 20, "south": 20}
