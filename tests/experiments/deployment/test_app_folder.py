"""The app that is written: Python that a person would read, of what a study chose."""

from __future__ import annotations

import io
import json
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedscout.engine.errors import ConfigurationError, LogError, StrategyError
from fedscout.engine.models.flat import new_model
from fedscout.experiments.config import load_config
from fedscout.experiments.deployment.app import Program, app_name, write_app
from fedscout.experiments.deployment.client import Agreement
from fedscout.experiments.deployment.driver import winner_of
from fedscout.experiments.trained import DESCRIPTION_FILE, what_is_kept, write_model
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
    flwr = [line for line in (folder / "README.md").read_text().splitlines() if line.startswith("flwr run")]
    assert flwr == ["flwr run . local --stream"]


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_flower_takes_the_folder_for_an_app(agreement: Agreement, tmp_path: Path) -> None:
    from flwr.cli.build import build_fab_from_disk

    bundle = build_fab_from_disk(write_app(tmp_path / "ward", agreement, Program(STRATEGY)))
    with zipfile.ZipFile(io.BytesIO(bundle)) as packed:
        names = set(packed.namelist())
    assert {f"ward/{name}" for name in ("federation.json", "server_app.py", "client_app.py")} < names


def test_a_program_says_what_a_search_may_cost(agreement: Agreement, tmp_path: Path) -> None:
    names = source(write_app(tmp_path / "ward", agreement, Program(None, "search", max_rounds=200)), "server_app")
    assert (names["MAX_ROUNDS"], names["MAX_BYTES"]) == (200, None)
    assert 'by="search"' in (tmp_path / "ward" / "ward" / "server_app.py").read_text()


@pytest.mark.parametrize(("folder", "name"), [("My App-2", "my_app_2"), ("ward", "ward")])
def test_an_app_is_called_as_its_folder(folder: str, name: str) -> None:
    assert app_name(Path(folder)) == name


@pytest.mark.parametrize("folder", ["2nd", "___", "a" * 60])
def test_a_folder_that_can_give_no_name_is_refused(folder: str) -> None:
    with refused(ConfigurationError, key="--out"):
        app_name(Path(folder))


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


def contestant(role: str, strategy: str, rate: float) -> dict[str, Any]:
    return {"role": role, "strategy": strategy, "parameters": {}, "learning_rate": rate}


@pytest.mark.parametrize(
    ("verdict", "wanted"),
    [("better", {"kind": "krum"}), ("no difference", {"kind": "fedavg", "client_learning_rate": 0.4})],
)
def test_what_is_deployed_is_what_the_study_says_to_use(tmp_path: Path, verdict: str, wanted: dict[str, Any]) -> None:
    """A pick that was not confirmed gives way to the stronger baseline, at its own rate."""
    contestants = [contestant("challenger", "krum", 0.2), contestant("fedavg", "fedavg", 0.2)]
    contestants.append(contestant("tuned-fedavg", "fedavg", 0.4))
    confirmation = {"verdict": verdict, "reference": "tuned-fedavg", "contestants": contestants}
    config, strategy = winner_of(study(tmp_path, confirmation=confirmation, best=contestants[0]))
    assert strategy == wanted
    assert config.identity() == load_config([], None).identity()


def test_a_pair_is_deployed_by_the_name_of_both(tmp_path: Path) -> None:
    best = {"strategy": "fedadam+fedprox", "parameters": {"eta": 0.1, "proximal_mu": 0.5}, "learning_rate": 0.2}
    _, strategy = winner_of(study(tmp_path, confirmation=None, best=best))
    assert parse_strategy(strategy).kind == "fedadam+fedprox"


def test_a_study_that_found_nothing_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(LogError) as caught:
        winner_of(study(tmp_path, confirmation=None, best=None))
    assert caught.value.faults[0].subject == str(tmp_path)
    with pytest.raises(LogError):
        winner_of(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        ({"kind": "fedavg"}, None),
        ({"kind": "fedadam+moon"}, None),
        ({"kind": "fedper"}, ("global", "personal")),
        ({"kind": "ditto"}, ("global", "personal")),
        ({"kind": "fedbabu"}, ("global", "tune")),
        ({"kind": "communities"}, ("group",)),
        ({"kind": "communities", "inside": "fine_tuning"}, ("first", "global")),
        ({"kind": "rhfl"}, ("group",)),
    ],
)
def test_what_is_kept_is_told_where_clients_use_others(
    agreement: Agreement, strategy: dict[str, Any], told: tuple[str, ...] | None
) -> None:
    kept = what_is_kept(parse_strategy(strategy), new_model(agreement.factory, seed=0).layout)
    assert (kept is None) == (told is None)
    assert all(word in (kept or "") for word in told or ())


@pytest.mark.parametrize("strategy", [{"kind": "local"}, {"kind": "fedper", "personal_layers": 3}])
def test_where_nothing_is_shared_there_is_no_model(agreement: Agreement, strategy: dict[str, Any]) -> None:
    """Of two layers three stay."""
    with refused(StrategyError, key="a strategy whose clients share something"):
        what_is_kept(parse_strategy(strategy), new_model(agreement.factory, seed=0).layout)


@pytest.mark.parametrize("num_models", [1, 3])
def test_each_of_several_models_is_written_and_none_of_before_stays(
    agreement: Agreement, tmp_path: Path, num_models: int
) -> None:
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
