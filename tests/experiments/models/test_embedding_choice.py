"""What detectors compare of which data."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedscout.engine.data.federation import EmbeddingSource
from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.models.request import ModelRequest, ModelSettings
from fedscout.experiments.models.table import build_model, embedding_source
from tests.kits.refusals import refused

IMAGES = ModelRequest((3, 16, 16), 10, ModelSettings(kind="lenet"), "image")
TABLE = ModelRequest((8,), 2, ModelSettings(kind="dense"))


def test_images_are_compared_by_the_model_s_last_hidden_layer_and_tables_as_they_are() -> None:
    lenet = build_model(IMAGES)
    assert embedding_source("auto", IMAGES, lenet) == EmbeddingSource(lenet, penultimate=True)
    assert embedding_source("features", IMAGES, lenet) is None
    assert embedding_source("auto", TABLE, build_model(TABLE)) is None


def test_a_network_of_one_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_extractor.py").write_text(
        "from torch import nn\n\n"
        "def flat(num_features):\n    return nn.Sequential(nn.Flatten(), nn.Linear(num_features, 7))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    source = embedding_source("my_extractor:flat", TABLE, build_model(TABLE))
    assert source is not None
    assert not source.penultimate
    assert sum(parameter.numel() for parameter in source.network().parameters()) == 8 * 7 + 7


def test_other_words_are_refused() -> None:
    with refused(ConfigurationError, key="federation.embedding"):
        embedding_source("pixels", TABLE, build_model(TABLE))
