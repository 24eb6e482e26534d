"""The real writer, and its own reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedscout.experiments.reports.export import export_to_tensorboard, trial_name
from tests.experiments.reports.exports.conftest import NUM_ROUNDS, MakeStudy

pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")


def test_every_trial_is_a_run_and_is_written_once(make_study: MakeStudy, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    study = make_study("search.strategies=[fedadam,fedprox]", "search.budget=6", "search.confirmation_seeds=2")
    for _ in range(2):
        assert export_to_tensorboard(study, tmp_path / "board") == len(study.records)
    folders = sorted((tmp_path / "board" / study.name).iterdir())
    assert [folder.name for folder in folders] == [trial_name(record) for record in study.records]
    for record, folder in zip(study.records, folders, strict=True):
        events = EventAccumulator(str(folder)).Reload()
        accuracy = events.Scalars("accuracy")
        assert [event.step for event in accuracy] == list(range(1, len(record.round_accuracy) + 1))
        assert [event.value for event in accuracy] == pytest.approx(record.round_accuracy, rel=1e-6)
        assert len(accuracy) == (1 if record.strategy == "fedprox" else NUM_ROUNDS)
        assert accuracy[0].wall_time == pytest.approx(record.finished_at.timestamp())
        (fitness,) = events.Scalars("fitness")
        assert fitness.value == pytest.approx(record.fitness)
        (start,) = (events.summary_metadata["_hparams_/session_start_info"].plugin_data.content,)
        told = HParamsPluginData.FromString(start).session_start_info.hparams
        assert told["strategy"].string_value == record.strategy
        assert told["seed"].number_value == record.seed
