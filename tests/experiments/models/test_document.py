"""`docs/models.md` says what the program does: numbers, settings, and an example that runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from math import prod
from pathlib import Path

import pytest

from fedscout.experiments.config import load_config
from fedscout.experiments.models.request import ModelRequest, ModelSettings
from fedscout.experiments.models.table import MODELS, build_model
from tests.experiments.models.test_models import READ

DOCUMENT = (Path(__file__).resolve().parents[3] / "docs" / "models.md").read_text()
FENCE = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| `(\w+)` \| .* \| ([\d,]+) \| (.*) \|$", re.MULTILINE)
ROWS = {kind: (int(number.replace(",", "")), rows) for kind, number, rows in ROW.findall(DOCUMENT)}


def documented_request(kind: str, rows: str) -> ModelRequest:
    """Read what the table's last column says, such as `3 × 32 × 32 pixels, 10 classes` or `66 tokens, 65 classes`."""
    *shape, num_classes = [int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", rows)]
    settings = ModelSettings(kind=kind)
    if "words" in rows or "tokens" in rows:
        return ModelRequest((80,), num_classes, settings, "tokens", shape[0])
    return ModelRequest(tuple(shape), num_classes, settings)


def test_every_model_has_a_row() -> None:
    assert set(ROWS) == set(MODELS) - {"auto"}


@pytest.mark.parametrize("kind", ROWS)
def test_numbers_of_parameters(kind: str) -> None:
    import torch

    documented, rows = ROWS[kind]
    with torch.device("meta"):
        module = build_model(documented_request(kind, rows))()
    assert sum(prod(parameter.shape) for parameter in module.parameters()) == documented


def test_settings_are_read_by_the_models_that_the_document_names() -> None:
    table = DOCUMENT.partition("| key | read by |")[2].partition("\n\n")[0]
    found: dict[str, set[str]] = {}
    setting = ""
    for line in table.splitlines()[2:]:
        key, kinds = line.split("|")[1:3]
        setting = key.strip(" `").removeprefix("model.") or setting
        found.setdefault(setting, set()).update(re.findall(r"`(\w+)`", kinds))
    expected: dict[str, set[str]] = {}
    for kind, settings in READ.items():
        for name in settings:
            expected.setdefault(name, set()).add(kind)
    assert found == expected


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (text,) = [text for text in FENCE.findall(DOCUMENT) if text.startswith("# file: nets.py")]
    (tmp_path / "nets.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    sys.modules.pop("nets", None)


@pytest.mark.usefixtures("example")
def test_the_example_can_be_trained() -> None:
    (command,) = [text for text in FENCE.findall(DOCUMENT) if "nets:Wide" in text and text.startswith("fedscout train")]
    config = load_config(command.split()[2:])
    assert config.federation.dataset == "wine"
    factory = build_model(ModelRequest((13,), 3, config.model))
    assert sum(parameter.numel() for parameter in factory().parameters()) == (13 * 256 + 256) + (256 * 3 + 3)


def test_commands_are_valid() -> None:
    for text in FENCE.findall(DOCUMENT):
        if text.startswith("fedscout train"):
            load_config(text.split()[2:])
