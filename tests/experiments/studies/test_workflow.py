"""From configuration to result: what is written, what stops it, and going on where an earlier run stopped."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fedscout.engine.data.client import Privacy
from fedscout.engine.errors import ConfigurationError, UserError
from fedscout.engine.trials.log import read_trials
from fedscout.engine.trials.record import Trial
from fedscout.experiments.config import StudyConfig, load_config
from fedscout.experiments.federation import build_federation
from fedscout.experiments.studies import workflow
from fedscout.experiments.studies.runner import LazyRunner
from fedscout.experiments.studies.workflow import Display, FinishedStudy, run_detection, run_training, run_workflow
from fedscout.search.ledger import StudyEvents
from fedscout.search.objective import DataOrigin
from tests.experiments.cli.conftest import SMALL
from tests.experiments.cli.processes import lasting_result
from tests.kits.refusals import refused


def small(*arguments: str) -> StudyConfig:
    return load_config([*SMALL, *arguments])


def on_record(told: Callable[[Trial, bool], None]) -> Display:
    return Display(trials=StudyEvents(on_record=told))


def run_noting(config: StudyConfig, folder: Path) -> tuple[FinishedStudy, list[bool]]:
    """Run a study, and tell of each trial whether it was known."""
    known: list[bool] = []
    return run_workflow(config, folder, on_record(lambda _, was_known: known.append(was_known))), known


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> FinishedStudy:
    return run_workflow(small(), tmp_path_factory.mktemp("study"), Display())


def copy_of(folder: Path, target: Path) -> Path:
    """Copy a study's folder as a run would have left it that was killed before its result was written."""
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("result.json"))
    return target


@pytest.mark.parametrize(
    ("setting", "known"),
    [
        ("seed=0", DataOrigin("wine", "dirichlet", alpha=0.1)),
        ("federation.scenario=iid", DataOrigin("wine", "iid")),
        ("federation.scenario=[{kind: class_skew, clients: [0]}]", DataOrigin("wine")),
        ("federation.scenario=[{kind: label_flip, rate: 0.5}]", DataOrigin("wine", "dirichlet", alpha=0.1)),
        (
            "federation.partition={kind: classes_per_client, class_share: 0.9}",
            DataOrigin("wine", "classes_per_client", class_share=0.9),
        ),
        ("federation.dataset=cartpole", DataOrigin("cartpole")),
    ],
)
def test_the_origin_of_rows(setting: str, known: DataOrigin) -> None:
    assert workflow.data_origin_of(small(setting)) == known


# What is written.


def test_the_result_holds_what_was_found(finished: FinishedStudy) -> None:
    document, outcome = finished.document, finished.outcome
    assert json.loads((finished.folder / "result.json").read_text()) == json.loads(json.dumps(document))
    assert [trial["trial"] for trial in document["trials"]] == [0, 1, 2, 3]
    assert document["baseline"] == document["trials"][0]
    assert document["best"] == document["trials"][outcome.best.trial]
    assert document["report"] == finished.report.without_timings().model_dump(mode="json")
    assert document["confirmation"]["verdict"] in ("better", "no difference", "worse")
    assert document["config_hash"] == small().digest()
    assert document["config"] == small().identity()
    assert sum(document["federation"]["client_rows"]) == 178
    assert document["affected_clients"] == []
    table = read_trials(finished.folder).sort_values("trial")
    assert list(table["phase"]) == ["baseline"] + ["search"] * 3 + ["confirmation"] * 4
    assert list(table["fitness"][:4]) == [trial["fitness"] for trial in document["trials"]]
    assert set(table["config_hash"]) == {small().digest()}
    assert not list((finished.folder / "checkpoints").glob("*"))
    assert set(document["timings"]["seconds"]) == {*("data", "hosts", "detection", "training", "confirmation", "total")}


@pytest.mark.parametrize(("scenario", "affected"), [("label_poisoning", 1), ("iid", 0)])
def test_a_scenario_s_affected_clients_are_told(tmp_path: Path, scenario: str, affected: int) -> None:
    config = small(f"federation.scenario={scenario}", "search.budget=1", "search.confirmation_seeds=0")
    document = run_workflow(config, tmp_path / "out", Display(), detection=False).document
    assert len(document["affected_clients"]) == affected
    assert document["confirmation"] is None


# Going on.


@pytest.mark.parametrize("stopped_at", [0, 2, 5])
def test_an_interrupted_study_ends_the_same(finished: FinishedStudy, tmp_path: Path, stopped_at: int) -> None:
    def stop(record: Trial, known: bool) -> None:
        if record.trial == stopped_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_workflow(small(), tmp_path, on_record(stop))
    assert not (tmp_path / "result.json").exists()
    run_workflow(small(), tmp_path, Display())
    assert lasting_result(tmp_path) == lasting_result(finished.folder)


def test_a_published_search_is_eight_trainings_besides_fedavg(tmp_path: Path) -> None:
    """Those of an uninformed search from Python, and what is given stands."""
    data = [argument for argument in SMALL if not argument.startswith("search.")]
    published = run_workflow(load_config([*data, "search.published=true"]), tmp_path / "published")
    assert published.report is None
    assert published.outcome.confirmation is None
    trials = read_trials(published.folder)
    assert [*trials["phase"]] == ["baseline"] + 8 * ["search"]
    assert [*trials["generation"]][1:] == 4 * [1] + 4 * [2]
    plain = load_config([*data, "search.confirmation_seeds=0", "search.mutation_step=0.1"])
    same = read_trials(run_workflow(plain, tmp_path / "plain", detection=False).folder)
    assert [*trials["fitness"]] == [*same["fitness"]]
    longer = load_config([*data, "search.published=true", "search.confirmation_seeds=2"]).search
    assert (longer.confirmation_seeds, longer.informed, longer.tuned_baseline) == (2, False, False)
    assert StudyConfig.model_validate(load_config([*data, "search.published=true"]).model_dump()).search.published
    for wrong in (["search.published=1"], ["search.published=true", "search.kind=one_shot"]):
        with refused(ConfigurationError, key=wrong[-1].partition("=")[0]):
            load_config([*data, *wrong])


def test_search_then_an_uninformed_run_adds_the_diagnosis_alone(tmp_path: Path) -> None:
    config = small("search.informed=false")
    searched = run_workflow(config, tmp_path, Display(), detection=False)
    assert searched.document["report"] is None
    run, known = run_noting(config, tmp_path)
    assert all(known)
    assert run.document["report"] is not None
    assert run.document["trials"] == searched.document["trials"]


def test_a_diagnosis_of_another_version_is_measured_again(finished: FinishedStudy, tmp_path: Path) -> None:
    folder = copy_of(finished.folder, tmp_path / "out")
    (folder / "report.json").write_text('{"from": "the future"}')
    again = run_workflow(small(), folder, Display())
    assert again.document["report"] == finished.document["report"]


def test_the_seed_decides_the_result(finished: FinishedStudy, tmp_path: Path) -> None:
    other = run_workflow(small("seed=1"), tmp_path, Display())
    assert other.document["trials"] != finished.document["trials"]
    assert other.document["federation"] == finished.document["federation"]  # federation.seed decides that


# Mistakes.

NO_MODULE = "ModuleNotFoundError: No module named 'no_such_module'"
NOT_POSSIBLE = [
    (run_workflow, ["search.strategies=[krum]", "federation.num_clients=2"], "krum", "2"),
    (run_workflow, ["search.strategies=[fedavg,fedbn]"], "fedbn", "layers Linear"),
    (run_workflow, ["search.strategies=[scaffold]", "training.optimizer=adam"], "scaffold", "optimizer adam"),
    (run_workflow, ["search.customs=[{path: 'no_such_module:Thing'}]"], "no_such_module", NO_MODULE),
    (run_workflow, ["search.customs=[{pth: 'a:B'}]"], "path of custom", None),
    (run_workflow, ["federation.dataset=diabetes", "training.reverse_weight=1"], "training", "{'reverse_weight': 1.0}"),
    (run_training, ["federation.dataset=cartpole", "training.reverse_weight=1"], "training", "{'reverse_weight': 1.0}"),
    (run_training, ["strategy.kind=fedadam", "strategy.eta=-1"], "eta of fedadam", "-1"),
    (run_training, ["strategy.kind=scaffold", "training.momentum=0.9"], "scaffold", "momentum 0.9"),
]


@pytest.mark.parametrize(
    ("run", "arguments", "key", "given"), NOT_POSSIBLE, ids=lambda value: getattr(value, "__name__", str(value))[:40]
)
def test_a_mistake_is_told_and_nothing_written(
    tmp_path: Path, run: Callable[..., object], arguments: list[str], key: str, given: str | None
) -> None:
    with refused(UserError, key=key, given=given):
        run(small(*arguments), tmp_path / "deep" / "out", Display())
    assert list(tmp_path.iterdir()) == []


# The other commands' ways.


def test_training_logs_one_trial_and_does_not_repeat_it(tmp_path: Path) -> None:
    config = small("strategy.kind=fedadam", "strategy.eta=0.1")
    _, entry, folder = run_training(config, tmp_path / "out", Display())
    assert (entry.trial, entry.phase, entry.strategy) == (0, "train", "fedadam")
    assert entry.parameters["eta"] == 0.1
    known: list[bool] = []
    _, again, _ = run_training(config, folder, on_record(lambda _, was_known: known.append(was_known)))
    assert known == [True]
    assert again.fitness == entry.fitness
    assert len(list((folder / "trials").iterdir())) == 1


def test_a_trained_strategy_and_a_search_do_not_share_a_folder(finished: FinishedStudy, tmp_path: Path) -> None:
    run_training(small(), tmp_path / "trained", Display())
    with refused(UserError, key="trained"):
        run_workflow(small(), tmp_path / "trained", Display())
    with refused(UserError, key="searched"):
        run_training(small(), copy_of(finished.folder, tmp_path / "searched"), Display())


def test_with_an_epsilon_clients_answer_with_noise_alone() -> None:
    federation, _ = run_detection(small("detection.epsilon=2", "detection.noise=secure"), Display())
    assert federation.release.privacy == Privacy(2, delta=1e-6, secure=True)
    assert run_detection(small(), Display())[0].release.privacy is None


def test_a_finished_study_starts_nothing(
    finished: FinishedStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_of(finished.folder, tmp_path / "out")
    monkeypatch.setattr(workflow, "measure", lambda *_: pytest.fail("the detectors were asked again"))
    monkeypatch.setattr(LazyRunner, "started", lambda _: pytest.fail("a finished study needs no hosts"))
    again = run_workflow(small(), folder, Display())
    assert lasting_result(folder) == lasting_result(finished.folder)
    assert again.document["report"] == finished.document["report"]
    assert again.document["timings"]["seconds"]["hosts"] == 0


def test_a_built_federation_is_taken(finished: FinishedStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small("search.confirmation_seeds=0")
    federation = build_federation(config.federation, config.model)
    monkeypatch.setattr(workflow, "build_federation", lambda *_: pytest.fail("it was built again"))
    _, report = run_detection(config, federation=federation)
    assert report.without_timings().model_dump(mode="json") == finished.document["report"]
    study = run_workflow(config, tmp_path / "study", federation=federation).document
    assert study["trials"] == finished.document["trials"]
    assert study["federation"] == finished.document["federation"]
    _, entry, _ = run_training(config, tmp_path / "train", federation=federation)
    assert entry.rounds["accuracy"] == finished.outcome.baseline.rounds["accuracy"]
    advice = workflow.recommend(small("recommender.source=rules"), None, federation=federation)
    assert advice.report.without_timings() == report.without_timings()
