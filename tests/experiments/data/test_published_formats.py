"""Files written from what their publishers say of the format, value by value, by writers that know no loader.

- CIFAR: "Dataset layout" of https://www.cs.toronto.edu/~kriz/cifar.html. An image's row holds 1,024 bytes of red, then
  of green, then of blue, each row by row. The binary version has a byte of the label before them, of CIFAR-100 first
  the coarse and then the fine label, and nothing between records; the python version is a pickled dictionary.
- FEMNIST: `data/femnist/preprocess/data_to_json.py` of https://github.com/TalwalkarLab/leaf: `users`, `num_samples` and
  `user_data`; pixels of a grey picture, row by row, over 255; classes 0 to 9 digits, 10 to 35 capital letters, 36 to 61
  small ones.
- NF-UNSW-NB15: the columns, the classes and their counts of Sarhan et al., BDTA 2020, arXiv:2011.09144.
"""

from __future__ import annotations

import csv
import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.experiments.data.loading import clients_of, load_dataset

SIDE = 32


def pixel(channel: int, row: int, column: int, number: int) -> int:
    """Return a byte of picture `number` that no other place of it nearby has."""
    return (37 * channel + 5 * row + 3 * column + 11 * number) % 256


def cifar_bytes(number: int) -> bytes:
    """Return a picture as the page says: channel by channel, row by row."""
    return bytes(
        pixel(channel, row, column, number) for channel in range(3) for row in range(SIDE) for column in range(SIDE)
    )


def expected(numbers: range) -> np.ndarray:
    """Return pictures as an artist would: at each place of each picture three colours."""
    pictures = np.zeros((len(numbers), SIDE, SIDE, 3))
    for place, number in enumerate(numbers):
        for row in range(SIDE):
            for column in range(SIDE):
                pictures[place, row, column] = [pixel(channel, row, column, number) for channel in range(3)]
    return pictures


def write_cifar10_binary(folder: Path) -> None:
    folder.mkdir(parents=True)
    for batch in range(5):
        records = b"".join(struct.pack("B", number % 10) + cifar_bytes(number) for number in (2 * batch, 2 * batch + 1))
        (folder / f"data_batch_{batch + 1}.bin").write_bytes(records)
    (folder / "test_batch.bin").write_bytes(struct.pack("B", 9) + cifar_bytes(99))
    (folder / "batches.meta.txt").write_text("airplane\nautomobile\n")


def write_cifar10_python(folder: Path) -> None:
    folder.mkdir(parents=True)
    for batch in range(5):
        numbers = (2 * batch, 2 * batch + 1)
        content = {
            b"batch_label": f"training batch {batch + 1} of 5".encode(),
            b"labels": [number % 10 for number in numbers],
            b"data": np.array([list(cifar_bytes(number)) for number in numbers], dtype=np.uint8),
            b"filenames": [b"leptodactylus_pentadactylus_s_000004.png", b"camion_s_000148.png"],
        }
        with (folder / f"data_batch_{batch + 1}").open("wb") as file:
            pickle.dump(content, file, protocol=2)
    meta = {b"label_names": [b"airplane"], b"num_cases_per_batch": 2, b"num_vis": 3072}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta, protocol=2))
    (folder / "readme.html").write_text("<meta>")


@pytest.mark.parametrize("version", ["batches-bin", "batches-py"])
def test_cifar10(tmp_path: Path, version: str) -> None:
    write = write_cifar10_binary if version == "batches-bin" else write_cifar10_python
    write(tmp_path / "cifar10" / f"cifar-10-{version}")
    dataset = load_dataset("cifar10", folder=tmp_path)
    np.testing.assert_array_equal(np.rint(dataset.features.transpose(0, 2, 3, 1) * 255), expected(range(10)))
    # The order of the classes on the page.
    assert [dataset.class_names[label] for label in dataset.labels] == [
        *("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    ]


@pytest.mark.parametrize("version", ["binary", "python"])
def test_cifar100(tmp_path: Path, version: str) -> None:
    # Of the page's table: a beaver is an aquatic mammal, a tulip a flower, a wolf a large carnivore.
    kinds = {"beaver": ("aquatic_mammals", 4, 0), "tulip": ("flowers", 92, 2), "wolf": ("large_carnivores", 97, 8)}
    folder = tmp_path / "cifar100" / f"cifar-100-{version}"
    folder.mkdir(parents=True)
    if version == "binary":
        rows = (struct.pack("BB", coarse, fine) + cifar_bytes(n) for n, (_, fine, coarse) in enumerate(kinds.values()))
        (folder / "train.bin").write_bytes(b"".join(rows))
    else:
        content = {
            b"fine_labels": [fine for _, fine, _ in kinds.values()],
            b"coarse_labels": [coarse for _, _, coarse in kinds.values()],
            b"data": np.array([list(cifar_bytes(number)) for number in range(3)], dtype=np.uint8),
            b"filenames": [b"a.png", b"b.png", b"c.png"],
            b"batch_label": b"training batch 1 of 1",
        }
        (folder / "train").write_bytes(pickle.dumps(content, protocol=2))
    for label, names in {"fine_label": list(kinds), "coarse_label": [group for group, _, _ in kinds.values()]}.items():
        dataset = load_dataset("cifar100", label=label, folder=tmp_path)
        assert [dataset.class_names[number] for number in dataset.labels] == names
        np.testing.assert_array_equal(np.rint(dataset.features.transpose(0, 2, 3, 1) * 255), expected(range(3)))


def write_leaf(path: Path, drawn: dict[str, list[tuple[np.ndarray, int]]]) -> None:
    """Write what LEAF's scripts write of grey pictures by writer."""
    user_data: dict[str, dict[str, Any]] = {}
    for writer, pictures in drawn.items():
        rows = [[int(value) / 255 for line in picture for value in line] for picture, _ in pictures]
        user_data[writer] = {"x": rows, "y": [label for _, label in pictures]}
    whole = {"users": [*drawn], "num_samples": [len(pictures) for pictures in drawn.values()], "user_data": user_data}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole))


def test_femnist(tmp_path: Path) -> None:
    paper = np.full((28, 28), 255)
    stroke = paper.copy()
    stroke[3:25, 13] = 0  # ink from top to bottom, left of the middle
    folder = tmp_path / "leaf_femnist"
    write_leaf(
        folder / "train/all_data_0_niid_0_keep_0_train_9.json",
        {"f0271_44": [(stroke, 1), (paper, 10 + 8)], "f1234_07": [(stroke, 36 + 11), (paper, 0)]},
    )
    write_leaf(folder / "train/all_data_1_niid_0_keep_0_train_9.json", {"f2000_01": [(stroke, 61)]})
    write_leaf(folder / "test/all_data_0_niid_0_keep_0_test_9.json", {"f0271_44": [(paper, 5)]})
    dataset = load_dataset("leaf_femnist", folder=tmp_path)
    assert [dataset.class_names[label] for label in dataset.labels] == ["1", "I", "l", "0", "z"]
    assert clients_of(dataset) == ["f0271_44"] * 2 + ["f1234_07"] * 2 + ["f2000_01"]
    ink = dataset.features[0, 0] < 0.5
    assert [np.flatnonzero(ink.any(axis=axis)).tolist() for axis in (0, 1)] == [[13], [*range(3, 25)]]
    assert (dataset.features[1] == 1).all()


FLOW_COLUMNS = (
    "IPV4_SRC_ADDR,L4_SRC_PORT,IPV4_DST_ADDR,L4_DST_PORT,PROTOCOL,L7_PROTO,IN_BYTES,OUT_BYTES,IN_PKTS,OUT_PKTS,"
    "TCP_FLAGS,FLOW_DURATION_MILLISECONDS,Label,Attack"
)
FLOW_CLASSES = {
    "Benign": 1_550_712,
    "Fuzzers": 19_463,
    "Analysis": 1_995,
    "Backdoor": 1_782,
    "DoS": 5_051,
    "Exploits": 24_736,
    "Generic": 5_570,
    "Reconnaissance": 12_291,
    "Shellcode": 1_365,
    "Worms": 153,
}


def test_netflow_records_are_of_ten_classes_unless_two_are_asked_for(tmp_path: Path) -> None:
    assert sum(FLOW_CLASSES.values()) == 1_623_118
    kept = {name: 1 + count // 10_000 for name, count in FLOW_CLASSES.items()}
    (tmp_path / "nf_unsw_nb15").mkdir()
    with (tmp_path / "nf_unsw_nb15/NF-UNSW-NB15.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(FLOW_COLUMNS.split(","))
        for name, count in kept.items():
            for row in range(count):
                address = ("59.166.0.5", 4894 + row, "149.171.126.2", 53, 17, 5.0)
                writer.writerow([*address, 130 + row, 162, 2, 2, 0, row % 7, int(name != "Benign"), name])
    dataset = load_dataset("nf_unsw_nb15", folder=tmp_path)
    counts = dict(zip(dataset.class_names, np.bincount(dataset.labels).tolist(), strict=True))
    assert counts == kept
    two = load_dataset("nf_unsw_nb15", label="Label", folder=tmp_path)
    assert two.class_names == ("benign", "attack")
    assert np.bincount(two.labels).tolist() == [kept["Benign"], sum(kept.values()) - kept["Benign"]]
    assert not {"Attack", "Label", "L4_SRC_PORT"} & set(two.feature_names)
