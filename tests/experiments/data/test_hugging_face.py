"""Data sets of the Hugging Face hub, of which small ones, made here, take the place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

from tests.experiments.data.loading import assert_refused, clients_of, load_dataset

Hub = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    """Return what makes some columns the answer of the hub; it returns the requests made since."""

    def serve(columns: dict[str, list[Any]], **kinds: Any) -> list[tuple[Any, ...]]:
        rows = datasets.Dataset.from_dict(columns)
        for name, kind in kinds.items():
            rows = rows.cast_column(name, kind)
        asked: list[tuple[Any, ...]] = []

        def load(path: str, name: str | None, *, split: str) -> datasets.Dataset:
            asked.append((path, name, split))
            return rows

        monkeypatch.setattr(datasets, "load_dataset", load)
        return asked

    return serve


PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 9, 3)).astype(np.uint8)
THREE = datasets.ClassLabel(names=["cat", "dog", "eel"])


def images(mode: str = "RGB") -> list[Image.Image]:
    return [Image.fromarray(pixels).convert(mode) for pixels in PIXELS]


@pytest.mark.parametrize("kind", ["image", "table"])
def test_rows_without_a_label_or_a_client_are_left_out(hub: Hub, kind: str) -> None:
    features: dict[str, list[Any]] = {"image": [*images(), *images()], "table": [row / 8 for row in range(12)]}
    columns = {
        "x": features[kind],
        "label": [0, 2, -1, 2, None, 0, 2, 0, 2, 0, 2, 0],
        "who": [*"ababab", None, *"babab"],
    }
    kinds = {"x": datasets.Image()} if kind == "image" else {}
    hub(columns, label=THREE, **kinds)
    dataset = load_dataset("hf:owner/name", client_column="who", min_release=1)
    assert dataset.labels.tolist() == [0, 1, 1, 0, 0, 1, 0, 1, 0]
    assert dataset.class_names == ("cat", "eel")
    assert clients_of(dataset) == [*"abbbbabab"]
    assert dataset.facts["num_rows_unlabelled"] == 3


def test_images_and_their_clients(hub: Hub) -> None:
    columns = {"img": images(), "label": [0, 2, 0, 2, 0, 2], "device": ["a", "b"] * 3}
    asked = hub(columns, img=datasets.Image(), label=THREE)
    dataset = load_dataset("hf:owner/name", client_column="device")
    assert asked == [("owner/name", None, "train")]
    assert (dataset.kind, dataset.features.shape) == ("image", (6, 3, 8, 9))
    np.testing.assert_array_equal(np.rint(dataset.features * 255), PIXELS.transpose(0, 3, 1, 2))
    assert dataset.class_names == ("cat", "eel")  # no dog among the rows
    assert dataset.labels.tolist() == [0, 1] * 3
    assert clients_of(dataset) == ["a", "b"] * 3
    assert dataset.source.endswith("https://huggingface.co/datasets/owner/name")


def wide(first: int, last: int) -> Image.Image:
    """Return 16-bit grey: two pixels of a brightness each."""
    return Image.fromarray(np.array([[first, last]], np.uint16))


def with_alpha(mode: str, *pixels: Any) -> Image.Image:
    image = Image.new(mode, (2, 1))
    image.putdata(pixels)
    return image


def palette() -> Image.Image:
    """Return a picture of colours by number: red and blue."""
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putdata([0, 1])
    return image


GREY = Image.fromarray(np.array([[0, 200]], np.uint8))
COLOUR = Image.fromarray(np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8))


@pytest.mark.parametrize(
    ("pictures", "expected"),
    [
        ([wide(0, 65_535), wide(257, 514)], [[[0, 255]], [[1, 2]]]),
        ([wide(0, 65_535), GREY], [[[0, 255]], [[0, 200]]]),
        ([with_alpha("LA", (100, 255), (100, 0)), GREY], [[[100, 0]], [[0, 200]]]),
        ([with_alpha("RGBA", (9, 8, 7, 255), (9, 8, 7, 0)), GREY], [[[9, 0], [8, 0], [7, 0]], [[0, 200]] * 3]),
        ([GREY, COLOUR], [[[0, 200]] * 3, [[1, 4], [2, 5], [3, 6]]]),
        ([palette(), GREY], [[[255, 0], [0, 0], [0, 255]], [[0, 200]] * 3]),
    ],
    ids=["16 bits", "16 and 8 bits", "grey and transparent", "transparent", "colour behind grey", "palette"],
)
def test_pictures_are_decoded_as_those_of_a_folder(hub: Hub, pictures: list[Image.Image], expected: Any) -> None:
    """Channels are those of all pictures; what is transparent is black."""
    hub({"img": pictures * 2, "label": [0, 1] * 2}, img=datasets.Image())
    features = load_dataset("hf:owner/name").features
    np.testing.assert_array_equal(np.rint(features[:2, :, 0] * 255), np.array(expected).reshape(2, -1, 2))


def test_pictures_of_no_known_scale_are_refused(hub: Hub) -> None:
    hub({"img": [Image.fromarray(np.ones((2, 2), np.float32))] * 4, "label": [0, 1] * 2}, img=datasets.Image())
    key = "an image of data set 'hf:owner/name'"
    assert_refused("hf:owner/name", key=key, given="Pillow's mode 'F'")


def test_subset_and_split_are_passed_on(hub: Hub) -> None:
    asked = hub({"sentence": ["good", "bad"] * 5, "label": [1, 0] * 5})
    load_dataset("hf:owner/name:part", split="train+test")
    assert asked == [("owner/name", "part", "train+test")]


TEXTS, LABELS, PICTURE = ["a", "b"] * 3, [0, 1] * 3, {"img": datasets.Image()}
NAME = "data set 'hf:owner/name'"
IMG = f"column 'img' of {NAME}"
ROWS: dict[str, tuple[dict[str, list[Any]], dict[str, Any], dict[str, str], str, str | tuple[str, ...]]] = {
    "no rows": ({"text": [], "label": []}, {}, {}, f"{NAME}, split 'train',", "none"),
    "no label": ({"text": TEXTS, "mark": LABELS}, {}, {}, "federation.label", "columns are: text, mark"),
    "secret labels": ({"img": images(), "label": [-1] * 6}, {"label": THREE, **PICTURE}, {}, NAME, "6 rows"),
    "no label at all": ({"text": TEXTS, "label": [-1] * 6}, {"label": THREE}, {}, NAME, "6 rows"),
    "another label": ({"img": images(), "label": LABELS}, PICTURE, {"label": "x"}, "federation.label", "img, label"),
    "columns of pictures": (
        {"img": images(), "label": LABELS},
        PICTURE,
        {"text_column": "label"},
        "federation.text_column",
        "pictures",
    ),
    "lists": ({"a": [[1, 2]] * 6, "label": LABELS}, {}, {}, "column 'a' of the Dataset", "columns.a=drop"),
    "images of two sizes": (
        {"img": [*images()[:5], images()[5].resize((4, 4))], "label": LABELS},
        PICTURE,
        {},
        f"the images of {NAME}",
        "(4, 4) and (8, 9)",
    ),
    "an image missing": ({"img": [*images()[:5], None], "label": LABELS}, PICTURE, {}, IMG, ""),
}


@pytest.mark.parametrize(("columns", "kinds", "asked", "key", "names"), ROWS.values(), ids=ROWS)
def test_rows_that_make_no_data_set(
    hub: Hub, columns: dict[str, list[Any]], kinds: dict[str, Any], asked: dict[str, str], key: str, names: Any
) -> None:
    hub(columns, **kinds)
    assert_refused("hf:owner/name", key=key, names=names, **asked)


@pytest.mark.parametrize("name", ["hf:", "hf:name", "hf:/name", "hf:owner/", "hf:a/b/c", "hf:../secrets", "hf:./x"])
def test_an_address_names_owner_and_data_set(hub: Hub, name: str) -> None:
    asked = hub({"text": TEXTS, "label": LABELS})
    assert_refused(name, key="federation.dataset")
    assert asked == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionError("Couldn't reach the Hub"), "local cache"),
        (FileNotFoundError("Dataset 'owner/name'\ndoesn't exist on the Hub"), "Dataset 'owner/name' doesn't exist on"),
        (ValueError('Unknown split "train".'), "Unknown split"),
        (KeyError(), "KeyError"),
    ],
)
def test_what_the_library_cannot_do_is_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", fail)
    assert_refused("hf:owner/name", key=f"{NAME}, split 'train',", names=reason)
