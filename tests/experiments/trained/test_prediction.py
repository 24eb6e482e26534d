"""A trained model reads new rows as the training did, and says of them what the trial's own evaluation says."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.numpy import save_file

from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, DataError, LogError
from fedscout.engine.messages.calls import Session
from fedscout.engine.models.flat import new_model
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.experiments.config import StudyConfig, load_config
from fedscout.experiments.federation import build_federation
from fedscout.experiments.studies.workflow import run_training
from fedscout.experiments.trained import PROBABILITY, load
from fedscout.search.ledger import trainings_of
from fedscout.strategies.methods.averaging import FedAvgSpec
from tests.experiments.cli.conftest import exit_code

OWN = ["federation.client_column=ward", "federation.partition.kind=natural", "federation.small_clients=train"]


def frame(num_rows: int = 90) -> pd.DataFrame:
    """Return numbers, categories, dates and gaps; texts; two classes and a quantity."""
    generator = np.random.default_rng(1)
    age = generator.normal(50, 10, num_rows).round(1)
    words = generator.choice(["fine", "weak", "cough", "rest", "pain", "sleep"], (num_rows, 4))
    return pd.DataFrame(
        {
            "ward": generator.choice(["north", "south"], num_rows),
            "age": np.where(generator.random(num_rows) < 0.1, np.nan, age),
            "colour": generator.choice(["red", "green", "blue"], num_rows),
            "seen": pd.date_range("2024-01-05", periods=num_rows).strftime("%d.%m.%Y"),
            "note": [" ".join(each) for each in words],
            "outcome": np.where(age + generator.normal(0, 5, num_rows) > 50, "ill", "well"),
            "cost": (age * 3 + generator.normal(0, 4, num_rows)).round(2),
        }
    )


def pictures(folder: Path) -> Path:
    """Write grey pictures of two classes, and return their folder."""
    generator = np.random.default_rng(2)
    for number in range(24):
        path = folder / ("dark" if number % 2 else "light") / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 160, (9, 9)) + (0 if number % 2 else 90)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    return folder


OUTCOME = ["federation.dataset=table.csv", "federation.label=outcome"]
COST = ["federation.dataset=table.csv", "federation.label=cost", "federation.task=regression"]
SEVERAL = ["federation.num_clients=4", "federation.min_release=1"]
NO_NOTE = "federation.drop_columns=[note]"
KINDS = {
    "classes": [*OUTCOME, NO_NOTE, "federation.missing_values=[-9999]", *OWN],
    "quantity": [*COST, NO_NOTE, *OWN],
    "repeated": [*COST, NO_NOTE, "training.repetitions=3", *OWN],
    "texts": [*OUTCOME, "federation.text_column=note", *OWN],
    "pictures": ["federation.dataset=pictures", "federation.image_size=8", "federation.num_clients=2"],
    "several": [*OUTCOME, NO_NOTE, *SEVERAL, "strategy.kind=communities"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the data are."""
    folder = tmp_path_factory.mktemp("prediction")
    frame().to_csv(folder / "table.csv", index=False)
    pictures(folder / "pictures")
    return folder


def config_of(folder: Path, kind: str) -> StudyConfig:
    """Return the configuration of a short training."""
    settings = [text.replace("dataset=", f"dataset={folder}/") for text in KINDS[kind]]
    return load_config([*settings, f"training.num_rounds={1 if kind == 'repeated' else 2}", "engine.grid=local"], None)


Training = Callable[[str], tuple[Path, Federation, Trial]]


@pytest.fixture(scope="module")
def training(folder: Path) -> Training:
    """Return what trains a kind once: folder, federation with its rows, trial."""

    @cache
    def trained(kind: str) -> tuple[Path, Federation, Trial]:
        config = config_of(folder, kind)
        _, trial, out = run_training(config, folder / "out" / kind)
        assert trial.status == "completed", trial.error
        return out, build_federation(config.federation, config.model), trial

    return trained


def scored(federation: Federation, client: int, seed: int) -> npt.NDArray[np.int64]:
    """Return the rows on which a client was scored."""
    rows = federation.partition.client(client)
    return rows[federation.split_rows(client, federation.labels[rows], seed, 0.2, 0.0).test]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classes", "texts", "pictures", "quantity"])
def test_outputs_have_the_trials_bits_and_accuracy(training: Training, folder: Path, kind: str) -> None:
    """The reference is PyTorch's own call of the module, rows in the same chunks."""
    out, federation, trial = training(kind)
    found = load(out).predict(folder / ("pictures" if kind == "pictures" else "table.csv"))
    model = new_model(federation.model, seed=0)
    model.load(torch.from_numpy(trial.vector))
    model.module.eval()
    rows = torch.empty(federation.features.shape, memory_format=model.input_format(federation.features.shape[1:]))
    rows.copy_(torch.from_numpy(federation.features))
    with torch.no_grad():
        outputs = model.outputs(rows) if model.stack is None else model.stack.outputs(rows)
    if kind == "quantity":
        scale = federation.target_scale(trial.seed, 0.2, 0.0)
        expected = outputs[:, 0].double().numpy() * scale.deviation + scale.mean
        np.testing.assert_array_equal(found["prediction"], expected)
        return
    shares = outputs.softmax(dim=1).numpy()
    for place, name in enumerate(federation.class_names):
        np.testing.assert_array_equal(found[PROBABILITY.format(name)].to_numpy(), shares[:, place])
    right = found["prediction"].to_numpy() == np.array(federation.class_names)[federation.labels]
    assert trial.clients["id"]
    for client, accuracy in zip(trial.clients["id"], trial.clients["accuracy"], strict=True):
        assert right[scored(federation, client, trial.seed)].mean() == accuracy


def seeds_of(folder: Path, kind: str) -> list[int]:
    """Return the seeds of the trainings of which the median counts."""
    config = config_of(folder, kind)
    settings = TrialSettings(FedAvgSpec(), 2, 2, session=Session(seed=config.seed))
    return [part.session.seed for part in trainings_of(settings, config.training.repetitions)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["quantity", "repeated"])
def test_a_quantity_has_its_unit_and_the_trials_error(training: Training, folder: Path, kind: str) -> None:
    """Of several trainings the model is that of the median, which has test rows and a unit of its own."""
    out, federation, trial = training(kind)
    model, targets = load(out), federation.targets
    scale = model.description.scale
    assert list(model.predict(folder / "table.csv")) == ["prediction"]
    seed = next(seed for seed in seeds_of(folder, kind) if federation.target_scale(seed, 0.2, 0.0) == scale)
    errors = (model.predict(folder / "table.csv")["prediction"].to_numpy() - targets) / scale.deviation
    tests = np.concatenate([scored(federation, client, seed) for client in range(federation.num_clients)])
    assert np.mean(errors[tests] ** 2) == pytest.approx(trial.rounds["loss"][-1], rel=1e-5)


@pytest.mark.slow
def test_what_was_not_seen_is_read_as_in_the_training(training: Training, folder: Path) -> None:
    out, federation, _ = training("classes")
    new = (
        frame()
        .drop(columns=["outcome", "ward"])
        .head(3)
        .assign(colour=["pink", None, "red"], age=[np.nan, 47.0, -9999.0])
    )
    found, _ = load(out)._features(new)
    names = list(federation.feature_names)
    colours = [place for place, name in enumerate(names) if name.startswith("colour")]
    assert found[0, colours].tolist() == [0.0] * len(colours)
    assert found[0, [names.index("age"), names.index("age missing")]].tolist() == [0.0, 1.0]
    assert found[1:, names.index("age missing")].tolist() == [0.0, 1.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "rows", "named"),
    [
        ("classes", {"cost": [1], "age": [1.0], "seen": ["05.01.2024"]}, "colour"),
        ("classes", {"cost": [1], "age": ["old"], "colour": ["red"], "seen": ["05.01.2024"]}, "age"),
        ("classes", {"cost": [1], "age": [1], "colour": ["red"], "seen": ["soon"]}, "seen"),
        ("texts", {"age": [1]}, "note"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(
    training: Training, kind: str, rows: dict[str, Any], named: str
) -> None:
    with pytest.raises(DataError, match=named) as refused:
        load(training(kind)[0]).predict(pd.DataFrame(rows))
    assert len(refused.value.faults) == 1


@pytest.mark.slow
def test_each_group_of_clients_has_its_model(training: Training, folder: Path) -> None:
    out, _, trial = training("several")
    model = load(out)
    np.testing.assert_array_equal(model.vectors, trial.vector)
    said = [model.predict(folder / "table.csv", group)[PROBABILITY.format("ill")] for group in range(len(trial.vector))]
    assert len(said) > 1
    assert not said[0].equals(said[1])
    for group in (None, -1, len(said)):
        with pytest.raises(ConfigurationError):
            model.predict(folder / "table.csv", group)


@pytest.mark.slow
def test_the_command_prints_and_writes_what_python_returns(
    training: Training, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = training("classes")[0]
    expected = load(out).predict(folder / "table.csv")
    predict = partial(exit_code, "predict", out, folder / "table.csv")
    assert predict() == 0
    printed = pd.read_csv(io.StringIO(capsys.readouterr().out))
    assert printed["prediction"].tolist() == expected["prediction"].tolist()
    assert predict("--out", tmp_path / "said.parquet") == 0
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "said.parquet"), expected)


def edited(out: Path, tmp_path: Path, **changes: Any) -> Path:
    """Return a copy of a model's folder with another description."""
    shutil.copytree(out, tmp_path / "copy")
    path = tmp_path / "copy" / "model.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return path.parent


@pytest.mark.slow
def test_rows_may_come_in_another_format_than_those_of_the_training(
    training: Training, folder: Path, tmp_path: Path
) -> None:
    out, rows = training("classes")[0], json.loads((training("classes")[0] / "model.json").read_text())["rows"]
    copy = edited(out, tmp_path, rows={**rows, "separator": ",", "encoding": "utf-8", "header": True})
    pd.read_csv(folder / "table.csv").to_parquet(tmp_path / "table.parquet")
    expected = load(out).predict(folder / "table.csv")
    pd.testing.assert_frame_equal(load(copy).predict(tmp_path / "table.parquet"), expected)


@pytest.mark.slow
def test_a_folder_that_names_code_runs_none(training: Training, tmp_path: Path) -> None:
    copy = edited(training("classes")[0], tmp_path, model={"kind": "os:abort"})
    with pytest.raises(ConfigurationError):
        load(copy)
    with pytest.raises(ConfigurationError):
        load(copy, code="os:getcwd")


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        lambda copy: (copy / "model.json").unlink(),
        lambda copy: (copy / "model.json").write_text("{}"),
        lambda copy: (copy / "model.safetensors").unlink(),
        lambda copy: (copy / "model.safetensors").write_bytes(b"no weights"),
        lambda copy: save_file({"0.weight": np.zeros((2, 2), np.float32)}, copy / "model.safetensors"),
    ],
)
def test_a_damaged_folder_is_refused_in_one_line(
    training: Training, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    copy = edited(training("classes")[0], tmp_path)
    damage(copy)
    with pytest.raises(LogError) as refused:
        load(copy)
    assert len(refused.value.faults) == 1
    assert "\n" not in refused.value.faults[0]
