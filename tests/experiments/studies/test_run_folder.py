"""The folder of a study: for one process, for one configuration, and never half-written."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from fedscout.engine.errors import DataError, EngineError, Fault, LogError
from fedscout.engine.trials.log import TrialLog
from fedscout.engine.trials.record import Trial
from fedscout.experiments.config import StudyConfig, load_config
from fedscout.experiments.federation_config import FederationConfig
from fedscout.experiments.studies.run_folder import default_folder, differences, open_run_folder, versions

REPOSITORY = Path(__file__).resolve().parents[3]
CONFIG = StudyConfig()


def refusal(path: Path, config: StudyConfig = CONFIG, data: str | None = None) -> Fault:
    with pytest.raises(LogError) as caught, open_run_folder(path, config, data):
        pytest.fail("the folder was opened")
    (fault,) = caught.value.faults
    return fault


def content(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


# Opening.


def test_a_new_folder_says_whose_it_is_and_opens_again(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with open_run_folder(out, CONFIG) as folder:
        assert folder.path == out
        stored = json.loads((out / "config.json").read_text())
    assert stored == {"config_hash": CONFIG.digest(), "config": CONFIG.identity(), "versions": versions()}
    with open_run_folder(out, load_config(["engine.grid=local", "engine.num_hosts=3"])):
        assert json.loads((out / "config.json").read_text()) == stored


@pytest.mark.parametrize("dataset", ["/data/mine.csv", "../mine.csv", "..", "a/" * 200 + "t.csv", "hf:owner/name"])
def test_the_default_folder_lies_below_runs_wherever_the_data_are(dataset: str) -> None:
    folder = default_folder(CONFIG.model_copy(update={"federation": FederationConfig(dataset=dataset)}))
    assert folder.parts[:-1] == ("runs",)
    assert len(folder.name) < 100
    assert not folder.name.startswith(".")


# Refusals.


@pytest.mark.parametrize("name", ["trials", "checkpoints", "quarantine", ".lock", "config.json", "result.json"])
@pytest.mark.parametrize("has_study", [True, False])
def test_nothing_is_written_through_a_link(tmp_path: Path, name: str, has_study: bool) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    if has_study:
        with open_run_folder(out, CONFIG):
            pass
    out.mkdir(exist_ok=True)
    (out / name).unlink(missing_ok=True)
    elsewhere.mkdir()
    (out / name).symlink_to(elsewhere if "." not in name else elsewhere / "file")
    refusal(out)
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("again", [False, True])
def test_a_folder_that_was_moved_away_is_not_written_to(tmp_path: Path, again: bool) -> None:
    """Be another one in its place or none: what comes next would lie apart from what is there."""
    out = tmp_path / "out"
    with open_run_folder(out, CONFIG) as folder:
        log = TrialLog(out)
        out.rename(tmp_path / "moved")
        if again:
            out.mkdir()
        with pytest.raises(EngineError):
            folder.write_json("result.json", {})
        with pytest.raises(EngineError):
            log.append(Trial(study="s", key="k"))
        assert not out.exists() or not list(out.iterdir())


def test_another_configuration_is_refused_and_what_differs_is_named(tmp_path: Path) -> None:
    with open_run_folder(tmp_path, CONFIG):
        pass
    before = content(tmp_path)
    fault = refusal(tmp_path, load_config(["seed=3", "training.num_rounds=4", "federation.dataset=wine"]))
    assert fault.subject == str(tmp_path)
    changed = (
        "federation.dataset: 'digits' before, 'wine' now; seed: 0 before, 3 now; training.num_rounds: 30 before, 4 now;"
    )
    assert changed in fault
    assert content(tmp_path) == before
    with open_run_folder(tmp_path, CONFIG):
        pass


def test_a_report_serves_a_search_that_begins_otherwise_but_trials_do_not(tmp_path: Path) -> None:
    """`detect` and then `search` in one folder: the first generation is nothing that a report rests on."""
    informed, published = CONFIG, CONFIG.without_diagnosis()
    assert informed.digest() != published.digest()
    for config in (informed, published):
        with open_run_folder(tmp_path, config, None) as folder:
            folder.write_json("report.json", {})
    assert json.loads((tmp_path / "config.json").read_text())["config_hash"] == published.digest()
    (tmp_path / "trials").mkdir(exist_ok=True)
    (tmp_path / "trials" / "0.parquet").write_bytes(b"")
    assert "search.informed" in refusal(tmp_path, informed)


def test_differences_name_keys_that_only_one_side_has() -> None:
    old = {"a": 1, "b": {"c": 2, "d": 3}, "gone": 4}
    new = {"a": 1, "b": {"c": 2, "d": 5}, "new": 6}
    assert differences(old, new) == ["b.d: 3 before, 5 now", "gone: 4 before, None now", "new: None before, 6 now"]


@pytest.mark.parametrize("name", ["notes.txt", "trials", "config.json"])
def test_a_folder_with_anything_else_is_refused_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    fault = refusal(tmp_path)
    assert fault.key == "--out"
    assert (fault.given or "").startswith(f"{tmp_path} with {name} ")
    assert content(tmp_path) == {name}
    assert (tmp_path / name).read_text() == "mine"


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for path in (file, file / "below", Path("/proc/fedscout-test")):
        assert unwritable(path)
    assert file.read_text() == "mine"


def unwritable(path: Path) -> bool:
    fault = refusal(path)
    return fault.startswith("--out ") and f"got {path}: " in fault


# Nothing half-written.


def test_a_mistake_found_before_any_result_leaves_nothing(tmp_path: Path) -> None:
    for there, out in (((), "deep/out"), (("empty",), "empty"), (("runs", "runs/other"), "runs/mine")):
        root = tmp_path / f"before {out.replace('/', ' ')}"
        for name in ("", *there):
            (root / name).mkdir()
        with pytest.raises(DataError), open_run_folder(root / out, CONFIG):
            raise DataError("no such file")
        assert content(root) == {*there}


def test_a_mistake_found_later_keeps_what_was_found_out(tmp_path: Path) -> None:
    def write_and_fail() -> None:
        with open_run_folder(tmp_path / "out", CONFIG) as folder:
            folder.write_json("report.json", {"a": 1})
            raise DataError("later")

    with pytest.raises(DataError):
        write_and_fail()
    assert {"config.json", "report.json"} <= content(tmp_path / "out")


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, RuntimeError])
def test_an_interruption_keeps_the_folder(tmp_path: Path, interruption: type[BaseException]) -> None:
    with pytest.raises(interruption), open_run_folder(tmp_path, CONFIG):
        raise interruption
    with open_run_folder(tmp_path, CONFIG):
        assert (tmp_path / "config.json").is_file()


def test_other_data_are_refused(tmp_path: Path) -> None:
    for data in (None, "a", None, "a"):  # the digest is kept as soon as it is known
        with open_run_folder(tmp_path, CONFIG, data):
            pass
    fault = refusal(tmp_path, data="b")
    assert fault.subject == str(tmp_path)
    assert "data set 'digits'" in fault


def test_other_versions_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_run_folder(tmp_path, CONFIG):
        stored = json.loads((tmp_path / "config.json").read_text())
    stored["versions"]["torch"] = "1.0"
    (tmp_path / "config.json").write_text(json.dumps(stored))
    logger = logging.getLogger("fedscout")
    logger.addHandler(caplog.handler)
    try:
        with open_run_folder(tmp_path, CONFIG):
            pass
    finally:
        logger.removeHandler(caplog.handler)
    (message,) = {record.getMessage() for record in caplog.records}
    assert "torch: '1.0' before" in message
