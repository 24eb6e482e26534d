"""FEMNIST and Shakespeare as LEAF writes them: JSON by user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedscout.engine.errors import DataError
from fedscout.experiments.data.dataset import TextSettings
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig, PartitionConfig
from tests.experiments.data import image_files
from tests.experiments.data.loading import assert_refused, clients_of, load_dataset
from tests.kits.refusals import refused

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 784)) / 255


def leaf(users: dict[str, tuple[list[Any], list[Any]]]) -> dict[str, Any]:
    return {
        "users": list(users),
        "num_samples": [len(targets) for _, targets in users.values()],
        "user_data": {name: {"x": inputs, "y": targets} for name, (inputs, targets) in users.items()},
    }


def write(folder: Path, dataset: str, content: Any, part: str = "train", name: str = "a.json") -> None:
    encoded = content if isinstance(content, bytes) else json.dumps(content).encode()
    image_files.write(folder / dataset / part / name, encoded)


def femnist() -> dict[str, Any]:
    return leaf({"f01": (PIXELS[:4].tolist(), [0, 10, 36, 0]), "f02": (PIXELS[4:].tolist(), [61, 10])})


def test_femnist(tmp_path: Path) -> None:
    write(tmp_path, "leaf_femnist", femnist())
    dataset = load_dataset("leaf_femnist", folder=tmp_path)
    assert (dataset.kind, dataset.features.shape) == ("image", (6, 1, 28, 28))
    np.testing.assert_array_equal(dataset.features.reshape(6, 784), PIXELS.astype(np.float32))
    assert dataset.class_names == ("0", "A", "a", "z")  # digits, capitals, small letters
    assert dataset.labels.tolist() == [0, 1, 2, 0, 3, 1]
    assert clients_of(dataset) == ["f01"] * 4 + ["f02"] * 2
    variance = (dataset.features.astype(np.float64) / dataset.feature_unit).var(axis=0)
    assert variance.mean() == pytest.approx(1)


def test_files_and_parts_add_up_and_writers_are_natural_clients(tmp_path: Path) -> None:
    write(tmp_path, "leaf_femnist", femnist())
    more = leaf({"f03": (PIXELS[:2].tolist(), [5, 6]), "none": ([], [])})
    write(tmp_path, "leaf_femnist", more, name="b.json")
    write(tmp_path, "leaf_femnist", leaf({"f01": (PIXELS[:1].tolist(), [7])}), part="test")
    config = FederationConfig(
        dataset="leaf_femnist", folder=tmp_path, split="all", partition=PartitionConfig(kind="natural")
    )
    federation = build_federation(config, ModelConfig(kind="linear"))
    assert federation.facts["client_names"] == ("f01", "f02", "f03")
    assert federation.partition.sizes.tolist() == [5, 2, 2]
    assert load_dataset("leaf_femnist", folder=tmp_path).num_rows == 8
    write(tmp_path / "whole", "leaf_femnist", femnist(), part="all_data")
    assert load_dataset("leaf_femnist", folder=tmp_path / "whole", split="all").num_rows == 6


def test_shakespeare(tmp_path: Path) -> None:
    text = "to be, or not to be"
    inputs, targets = [text[start : start + 5] for start in range(14)], list(text[5:])
    write(tmp_path, "leaf_shakespeare", leaf({"HAMLET": (inputs, targets), "GHOST": (inputs[:3], targets[:3])}))
    dataset = load_dataset("leaf_shakespeare", folder=tmp_path, min_release=1)
    assert (dataset.kind, dataset.features.shape) == ("tokens", (17, 5))
    names = {" ": "space"}
    assert [dataset.class_names[label] for label in dataset.labels[:14]] == [names.get(c, c) for c in targets]
    # One window is the next one's beginning, by one character.
    np.testing.assert_array_equal(dataset.features[:13, 1:], dataset.features[1:14, :-1])
    assert len(np.unique(dataset.features)) == len(set(text))
    assert clients_of(dataset) == ["HAMLET"] * 14 + ["GHOST"] * 3


def test_what_the_files_fix_cannot_be_set(tmp_path: Path) -> None:
    write(tmp_path, "leaf_shakespeare", leaf({"A": (["ab"] * 3, ["a", "b", "a"])}))
    with refused(DataError, key="federation.text.length", given="None and 3", names="federation.text.stride"):
        load_dataset("leaf_shakespeare", folder=tmp_path, text=TextSettings(stride=3))
    with refused(DataError, key="federation.client_column", given="'play'"):
        load_dataset("leaf_shakespeare", folder=tmp_path, client_column="play")


GOOD = femnist()


def changed(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in {**GOOD, **changes}.items() if value is not None}


def with_user(x: Any, y: Any, count: Any) -> dict[str, Any]:
    return {"users": ["u"], "num_samples": [count], "user_data": {"u": {"x": x, "y": y}}}


def image(value: Any) -> list[Any]:
    return [value] * 784


USER = "a.json, user 'u':"
MALFORMED: dict[str, tuple[Any, str, str | tuple[str, ...]]] = {
    "empty": (b"", "a.json", "JSON"),
    "cut": (json.dumps(GOOD).encode()[:-50], "a.json", "JSON"),
    "nested without end": (b"[" * 100_000, "a.json", "JSON"),
    "a list": ([1], "a.json", "JSON"),
    "no user_data": (changed(user_data=None), "a.json", "user_data: Field required"),
    "users no list": (changed(users="f01"), "a.json", "users: "),
    "a count short": (changed(num_samples=[4]), "a.json", "num_samples"),
    "wrong counts": (changed(num_samples=[4, 3]), "a.json, user 'f02':", "got 3, 2, 2"),
    "another user": (changed(users=["f01", "f03"]), "a.json", "once"),
    "a user twice": (changed(users=["f01", "f01"]), "a.json", "once"),
    "small image": (with_user([[0.5] * 10], [1], 1), USER, "784"),
    "uneven images": (with_user([image(0.5), [1]], [1, 2], 2), USER, "784"),
    "text in an image": (with_user([image("ink")], [1], 1), USER, "784"),
    "pixels of bytes": (with_user([image(255)], [1], 1), USER, "between 0 and 1"),
    "label out of range": (with_user([image(0.5)], [62], 1), USER, "61, got 62"),
    "true as label": (with_user([image(0.5)], [True], 1), USER, "61, got True"),
    "no samples": (leaf({"u": ([], [])}), "data set 'leaf_femnist'", "got 0"),
}


@pytest.mark.parametrize(("content", "key", "names"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_files(tmp_path: Path, content: Any, key: str, names: str | tuple[str, ...]) -> None:
    write(tmp_path, "leaf_femnist", content)
    assert_refused("leaf_femnist", folder=tmp_path, key=key, names=names)


MALFORMED_TEXT: dict[str, tuple[Any, str, str]] = {
    "numbers": (with_user([1, 2], ["a", "b"], 2), USER, "texts"),
    "two characters behind": (with_user(["ab"], ["ab"], 1), USER, "all y"),
    "uneven": (with_user(["ab", "abc"], ["a", "b"], 2), USER, "[2, 3]"),
    "nothing": (with_user(["", ""], ["a", "b"], 2), USER, "[0]"),
    "uneven users": (leaf({"u": (["ab"], ["a"]), "v": (["abc"], ["a"])}), "a.json, user 'v':", "got 2 and 3"),
    "no samples": (leaf({"u": ([], [])}), "data set 'leaf_shakespeare'", "windows"),
}


@pytest.mark.parametrize(("content", "key", "names"), MALFORMED_TEXT.values(), ids=MALFORMED_TEXT)
def test_malformed_windows_are_one_clear_error(tmp_path: Path, content: Any, key: str, names: str) -> None:
    write(tmp_path, "leaf_shakespeare", content)
    assert_refused("leaf_shakespeare", folder=tmp_path, min_release=1, key=key, names=names)
