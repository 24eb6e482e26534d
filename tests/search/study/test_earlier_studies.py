"""What is read of earlier studies, and what is said of those that can't be used."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedscout.engine.errors import ConfigurationError
from fedscout.engine.trials.log import TrialLog
from fedscout.search.warm_start import EarlierStudy, read_earlier_studies
from fedscout.strategies import FedAdamSpec, FedMedianSpec, FedProxSpec
from tests.forged_trials import forge
from tests.kits.refusals import refused
from tests.search.earlier import FEDAVG, write_study

ADAM, PROX, MEDIAN = FedAdamSpec(eta=0.3), FedProxSpec(proximal_mu=0.5), FedMedianSpec()


def read(folder: Path) -> EarlierStudy:
    (study,), notes = read_earlier_studies([str(folder)])
    assert notes == []
    return study


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def claim(folder: Path, **changes: object) -> None:
    """Change what the folder says of its study's configuration."""
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, "config": {**content["config"], **changes}}))


def logged(folder: Path, **changes: object) -> None:
    """Change trial 1 in the log."""
    (path,) = (folder / "trials").glob("00001-*")
    forge(path, **changes)


def test_gains_are_differences_to_fedavg_best_first(tmp_path: Path) -> None:
    study = read(write_study(tmp_path, {FEDAVG: 0.5, PROX: 0.4, ADAM: 0.75, MEDIAN: None}))
    assert [spec for spec, _ in study.gains] == [ADAM, PROX, MEDIAN]
    assert [gain for _, gain in study.gains] == pytest.approx([0.25, -0.1, -0.5])  # a failed trial has fitness 0


def test_fresh_seeds_are_averaged_with_the_search_s(tmp_path: Path) -> None:
    """On the search's seed +0.3; on fresh ones +0.0 and -0.15: a mean of +0.05, below the other's +0.1."""
    study = read(
        write_study(
            tmp_path,
            {FEDAVG: 0.5, ADAM: 0.8, PROX: 0.6},
            confirmed={100: {ADAM: 0.6, FEDAVG: 0.6}, 101: {ADAM: 0.45, FEDAVG: 0.6}},
        )
    )
    assert [spec for spec, _ in study.gains] == [PROX, ADAM]
    assert [gain for _, gain in study.gains] == pytest.approx([0.1, 0.05])


def test_trials_of_fewer_rounds_and_a_study_without_fedavg_have_no_gains(tmp_path: Path) -> None:
    assert read(write_study(tmp_path / "short", {FEDAVG: 0.5, ADAM: 0.8}, rounds=1)).gains == ()
    assert read(write_study(tmp_path / "without", {ADAM: 0.8})).gains == ()


def test_client_parameters_are_read_with_the_rest(tmp_path: Path) -> None:
    told = FedAdamSpec(eta=0.3, client_learning_rate=0.5, client_local_epochs=2)
    study = read(write_study(tmp_path, {FEDAVG: 0.5, told: 0.8}))
    assert [spec for spec, _ in study.gains] == [told]


def test_a_folder_of_studies_is_searched_at_any_depth_and_each_is_read_once(tmp_path: Path) -> None:
    write_study(tmp_path / "a", {FEDAVG: 0.5, ADAM: 0.8})
    write_study(tmp_path / "sweep" / "b", {FEDAVG: 0.5, PROX: 0.8})
    studies, _ = read_earlier_studies([str(tmp_path), str(tmp_path / "a")])
    assert [study.name for study in studies] == [str(tmp_path / "a"), str(tmp_path / "sweep" / "b")]


def test_folders_without_studies_are_refused_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    missing, empty = str(tmp_path / "missing"), str(tmp_path / "empty")
    with refused(ConfigurationError, key="search.warm_start") as caught:
        read_earlier_studies([missing, empty])
    for name, fault in zip((missing, empty), caught.value.faults, strict=True):
        assert (fault.key, name in str(fault.given)) == ("search.warm_start", True)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda folder: (folder / "report.json").unlink(), ["hold report.json"]),
        (lambda folder: (folder / "report.json").write_text("{"), ["report.json", "JSON"]),
        (lambda folder: (folder / "report.json").write_text("[]"), ["report.json", "JSON"]),
        (lambda folder: (folder / "report.json").write_text("[" * 100_000), ["report.json", "JSON"]),
        (lambda folder: pipe(folder / "report.json"), ["report.json", "JSON"]),
        (lambda folder: claim(folder, training=[]), ["config.json", "config.training"]),
        (lambda folder: claim(folder, training={"num_rounds": None}), ["config.json", "config.training.num_rounds"]),
        (lambda folder: logged(folder, num_rounds=None), ["trial 1", "num_rounds"]),
        (lambda folder: (folder / "config.json").write_text("{}"), ["config.json", "config_hash"]),
        (lambda folder: (folder / "config.json").write_text("no"), ["config.json", "JSON"]),
        (lambda folder: [path.unlink() for path in (folder / "trials").iterdir()], ["log", "trials"]),
        (lambda folder: [path.write_bytes(b"") for path in (folder / "trials").iterdir()], ["log", "trials"]),
    ],
)
def test_a_study_that_cannot_be_used_is_an_error_by_name_and_a_note_among_others(
    tmp_path: Path, damage: object, named: list[str]
) -> None:
    folder = write_study(tmp_path / "damaged", {FEDAVG: 0.5, ADAM: 0.8})
    write_study(tmp_path / "whole", {FEDAVG: 0.5, ADAM: 0.8})
    damage(folder)  # type: ignore[operator]
    with pytest.raises(ConfigurationError) as caught:
        read_earlier_studies([str(folder)])
    (fault,) = caught.value.faults
    assert fault.startswith(str(folder))
    assert [name for name in named if name not in fault.removeprefix(str(folder))] == []
    studies, notes = read_earlier_studies([str(tmp_path)])
    assert [study.name for study in studies] == [str(tmp_path / "whole")]
    assert notes == [fault]


def test_a_strategy_that_is_no_more_is_passed_over(tmp_path: Path) -> None:
    folder = write_study(tmp_path, {FEDAVG: 0.5, ADAM: 0.8})
    log = TrialLog(folder)
    log.append(replace(log.read()[1], strategy="fedgone"))
    assert read(folder).gains == ()


def test_which_studies_are_of_one_federation(tmp_path: Path) -> None:
    study = read(write_study(tmp_path, {FEDAVG: 0.5}, dataset="digits", config_hash="one", data_digest="rows"))
    here, elsewhere = {"federation": {"dataset": "digits"}}, {"federation": {"dataset": "wine"}}
    assert study.is_of("one", elsewhere, "others")
    assert study.is_of("two", here, "others")
    assert study.is_of("two", elsewhere, "rows")  # the same rows in the same hands, said in another way
    assert not study.is_of("two", elsewhere, "others")
    assert not study.is_of("two", {"federation": {"dataset": "digits", "scenario": "label_poisoning"}}, "rows")
    assert json.loads((tmp_path / "config.json").read_text())["config_hash"] == "one"


@pytest.mark.parametrize("forged", [{"parameters": "[1]"}, {"parameters": "{" * 100_000}, {"fitness": math.nan}])
def test_values_that_no_trial_has_are_left_out_by_name(tmp_path: Path, forged: dict[str, object]) -> None:
    logged(write_study(tmp_path, {FEDAVG: 0.5, PROX: 0.4, ADAM: 0.75}), **forged)
    (study,), (note,) = read_earlier_studies([str(tmp_path)])
    assert len(study.gains) == 1
    assert "00001-" in note


def test_a_damaged_trial_is_left_out_by_name(tmp_path: Path) -> None:
    write_study(tmp_path, {FEDAVG: 0.5, PROX: 0.4, ADAM: 0.75})
    edited = sorted((tmp_path / "trials").iterdir())[2]
    table = pq.ParquetFile(edited).read()
    place = table.schema.get_field_index("fitness")
    pq.write_table(table.set_column(place, table.schema.field(place), pa.array([0.99])), edited)

    (study,), (note,) = read_earlier_studies([str(tmp_path)])

    assert [spec for spec, _ in study.gains] == [PROX]
    assert str(edited) in note
    assert "digest" in note
