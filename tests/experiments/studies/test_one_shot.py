"""From detection or words through one answer to a confirmed trial; and whoever answered, it is asked for once."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

import pytest

from fedscout.engine.errors import ConfigurationError, NoValidAnswerError, RecommenderError
from fedscout.engine.trials.log import read_trials
from fedscout.experiments.config import StudyConfig, load_config
from fedscout.experiments.reports.page import write_report
from fedscout.experiments.reports.study_console import headline
from fedscout.experiments.studies.workflow import SILENT, Display, FinishedStudy, Pipeline, run_workflow
from fedscout.strategies.methods.averaging import FedProxSpec
from fedscout.strategies.methods.robust import FedMedianSpec
from tests.experiments.cli.conftest import SMALL
from tests.experiments.cli.processes import lasting
from tests.experiments.studies.language_models import Server, no_key, server
from tests.kits.refusals import refused
from tests.search.earlier import FEDAVG, report_of, write_study
from tests.search.recommenders.loopback import KEY, ModelServer, chooses, fails, says

ONE_SHOT = (
    *(one for one in SMALL if not one.startswith(("search.budget", "search.generation", "search.tuned"))),
    "search.kind=one_shot",
    "search.tuning_factors=[2]",
    "recommender.connection_retries=0",
    "recommender.timeout_seconds=10",
)
GOOD = chooses("fedprox", proximal_mu=0.1, reason="as clients drift")
OTHER = chooses("fedmedian")
__all__ = ["no_key", "server"]


def small(*arguments: str, at: ModelServer | None = None) -> StudyConfig:
    return load_config([*ONE_SHOT, *arguments, *([] if at is None else [f"recommender.base_url={at.url}"])])


def killed_after_the_answer(folder: Path, target: Path) -> Path:
    """Return a folder as a run leaves it that is killed before a trial has finished; the model's record is lost."""
    target.mkdir()
    for name in ("config.json", "report.json", "one_shot.json"):
        if (folder / name).exists():
            shutil.copy(folder / name, target / name)
    return target


# By the rules.


@pytest.fixture(scope="module")
def by_rules(tmp_path_factory: pytest.TempPathFactory) -> FinishedStudy:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OPENAI_API_KEY", raising=False)
        return run_workflow(small(), tmp_path_factory.mktemp("rules"))


def test_one_trial_is_trained_beside_fedavg_and_confirmed(by_rules: FinishedStudy) -> None:
    log = read_trials(by_rules.folder).sort_values("trial")
    assert list(log["phase"])[:2] == ["baseline", "search"]
    assert set(log["phase"][2:]) == {"tuned-baseline", "confirmation"}
    assert set(log["searcher"]) == {"one_shot"}
    answer = by_rules.document["recommendation"]
    assert by_rules.document["trials"][1]["strategy"] == answer["strategy"]["kind"]
    confirmation = by_rules.outcome.confirmation
    assert confirmation.candidates[0].name == answer["name"]
    assert len(confirmation.seeds) == 2
    assert (answer["source"], answer["language_model"]) == ("rules", None)
    assert by_rules.outcome.recommendation.answered_by == answer["instead_of_model"]


def test_a_step_within_another_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recommendation takes 10 seconds, 3 of which are the detection that it asks for; and later 2 more."""
    clock = iter([0.0, 1.0, 4.0, 10.0, 20.0, 22.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    road = Pipeline(small(), SILENT)
    with road.timed("recommendation"), road.timed("detection"):
        pass
    with road.timed("recommendation"):
        pass
    assert road.timings == {"detection": 3.0, "recommendation": 7.0 + 2.0}


def test_a_killed_study_reads_the_rules_answer_back(by_rules: FinishedStudy, server: Server, tmp_path: Path) -> None:
    at = server([OTHER])
    again = run_workflow(small(at=at), killed_after_the_answer(by_rules.folder, tmp_path / "killed"))
    assert lasting(again) == lasting(by_rules)
    assert at.asked == []
    assert again.document["timings"]["seconds"].keys() == by_rules.document["timings"]["seconds"].keys() - {"detection"}


OUTSIDE = {"kind": "custom", "path": "os:system"}


@pytest.mark.parametrize("change", [None, {}, {"answer": OUTSIDE}], ids=["no JSON", "nothing", "outside of the space"])
def test_an_answer_that_can_not_be_used_is_asked_for_again(
    by_rules: FinishedStudy, tmp_path: Path, change: dict[str, object] | None
) -> None:
    folder = killed_after_the_answer(by_rules.folder, tmp_path / "killed")
    stored = json.loads((folder / "one_shot.json").read_text())
    text = "{" if change is None else json.dumps({**stored, **change} if change else {})
    (folder / "one_shot.json").write_text(text)
    assert lasting(run_workflow(small(), folder)) == lasting(by_rules)


# By a language model.


@pytest.mark.slow
def test_a_killed_study_does_not_ask_again(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = server([says("hm"), GOOD, OTHER])
    found = run_workflow(small(at=at), tmp_path / "whole")
    assert found.document["trials"][1]["parameters"]["proximal_mu"] == 0.1
    answer = found.document["recommendation"]
    assert (answer["source"], answer["instead_of_model"]) == ("llm", None)
    assert answer["language_model"]["num_answers"] == 2
    assert "diagnosis" in at.asked[0].user
    assert KEY not in (found.folder / "one_shot.json").read_text()
    folder = killed_after_the_answer(found.folder, tmp_path / "killed")
    monkeypatch.delenv("OPENAI_API_KEY")
    again = run_workflow(small(at=at), folder)
    assert lasting(again) == lasting(found)
    assert len(at.asked) == 2
    assert "as clients drift" in write_report(again.folder).read_text()


def test_a_model_that_must_answer_and_does_not_ends_the_study(server: Server, tmp_path: Path) -> None:
    down, stubborn = server([fails(503, "overloaded")]), server([says("no idea")])
    with pytest.raises(RecommenderError, match="503"):
        run_workflow(small("recommender.source=llm", at=down), tmp_path / "down")
    with pytest.raises(NoValidAnswerError, match="no idea"):
        run_workflow(small(at=stubborn), tmp_path / "stubborn")
    assert not list((tmp_path / "stubborn").rglob("*.parquet"))


# By a person's words.

WORDS = 'recommender.text="one site labels at random"'


@pytest.mark.slow
def test_words_take_the_place_of_the_diagnosis(server: Server, tmp_path: Path) -> None:
    at = server([GOOD, OTHER])
    found = run_workflow(small(WORDS, at=at), tmp_path / "whole")
    assert at.asked[0].user == {"description_by_a_person": "one site labels at random"}
    assert (found.report, found.document["report"]) == (None, None)
    assert "detection" not in found.document["timings"]["seconds"]
    assert not (found.folder / "report.json").exists()
    folder = killed_after_the_answer(found.folder, tmp_path / "killed")
    assert lasting(run_workflow(small(WORDS, at=at), folder)) == lasting(found)
    assert len(at.asked) == 1


# What is left.


def test_where_fedavg_is_recommended_nothing_else_is_trained(server: Server, tmp_path: Path) -> None:
    found = run_workflow(small(at=server([chooses("fedavg")])), tmp_path / "whole")
    assert [trial["phase"] for trial in found.document["trials"]] == ["baseline"]
    assert found.outcome.confirmation is None
    assert found.outcome.best is found.outcome.baseline
    assert "fedavg" in headline(found.outcome)


def test_mistakes_are_found_before_anything_is_written(tmp_path: Path) -> None:
    with refused(ConfigurationError, key="search.kind", given="a study without either"):
        run_workflow(small(), tmp_path / "out", detection=False)
    with refused(ConfigurationError, key="recommender.text", given="search.kind=genetic"):
        run_workflow(small("search.kind=genetic", WORDS), tmp_path / "out")
    with refused(RecommenderError, key="the environment variable OPENAI_API_KEY"):
        run_workflow(small("recommender.source=llm"), tmp_path / "out")
    with refused(ConfigurationError, key="recommender.text"):
        small("recommender.text=' '")
    assert list(tmp_path.iterdir()) == []


# A study that starts from earlier ones: what it tries first, what it keeps, and what it may not use.


ARGUMENTS = (*SMALL, "search.confirmation_seeds=0")
PROX = FedProxSpec(proximal_mu=0.5)


def config_from(*folders: Path, more: tuple[str, ...] = ()) -> StudyConfig:
    names = ", ".join(str(folder) for folder in folders)
    return load_config([*ARGUMENTS, f"search.warm_start=[{names}]", *more])


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    folder = tmp_path / "earlier"
    write_study(
        folder / "near", {FEDAVG: 0.5, FedMedianSpec(): 0.9, PROX: 0.6}, report_of(num_clients=4, num_classes=3)
    )
    write_study(folder / "far", {FEDAVG: 0.5, PROX: 0.9}, report_of(curvature=1e6), data_digest="others")
    return folder


def test_a_killed_study_goes_on_from_what_the_earlier_ones_said_then(earlier: Path, tmp_path: Path) -> None:
    config = config_from(earlier)
    finished = run_workflow(config, tmp_path / "study", Display())

    start = finished.document["warm_start"]
    assert [Path(study["study"]).name for study in start["studies"]] == ["near", "far"]
    tried = [entry.spec for entry in finished.outcome.trials]
    assert tried[:2] == [FedMedianSpec(), PROX]
    assert len(tried) == 3
    assert json.loads((tmp_path / "study" / "warm_start.json").read_text()) == start

    shutil.rmtree(earlier)
    for path in sorted((tmp_path / "study" / "trials").iterdir())[1:]:
        path.unlink()
    again = run_workflow(config, tmp_path / "study", Display())
    assert lasting(again) == lasting(finished)


def test_a_race_enters_what_it_is_given(earlier: Path, tmp_path: Path) -> None:
    config = config_from(earlier, more=("search.kind=racing", "search.racing.min_rounds=1", "training.num_rounds=4"))
    finished = run_workflow(config, tmp_path / "study", Display())
    assert [entry.spec for entry in finished.outcome.trials][:2] == [FedMedianSpec(), PROX]
    assert finished.document["trainings"] <= 2.5
    assert {trial["num_rounds"] for trial in finished.document["trials"]} == {1, 4}


@pytest.mark.slow
def test_a_study_is_not_told_of_its_own_federation(tmp_path: Path) -> None:
    first = run_workflow(load_config(ARGUMENTS), tmp_path / "first", Display())
    finished = run_workflow(config_from(tmp_path, more=("seed=1",)), tmp_path / "second", Display())
    start = finished.document["warm_start"]
    (study,) = start["studies"]
    assert study.pop("note")
    assert study == {"study": str(first.folder), "similarity": None, "same_data": False}
    assert (start["proposals"], len(start["notes"])) == ([], 1)


def test_mistakes_are_told_before_anything_is_done_and_leave_nothing(earlier: Path, tmp_path: Path) -> None:
    for folder, detection in ((tmp_path / "nowhere", True), (earlier, False)):
        with refused(ConfigurationError, key="search.warm_start"):
            run_workflow(config_from(folder), tmp_path / "study", Display(), detection=detection)
    assert not (tmp_path / "study").exists()


@pytest.mark.slow
def test_a_kept_warm_start_names_no_code(earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who plants one can't have a module imported, whatever the file proposes; what does not fit is made again."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "planted_module.py").touch()
    config = config_from(earlier)
    finished = run_workflow(config, tmp_path / "study", Display())
    kept = tmp_path / "study" / "warm_start.json"
    start = json.loads(kept.read_text())
    planted = {"kind": "custom", "path": "planted_module:Own"}
    for strategy in (planted, {"kind": "fedmedian", "no": 1}, {"kind": "gone"}):
        kept.write_text(json.dumps({**start, "proposals": [{"strategy": strategy, "study": "near", "gain": 1.0}]}))
        (tmp_path / "study" / "result.json").unlink()
        again = run_workflow(config, tmp_path / "study", Display())
        assert "planted_module" not in sys.modules
        assert lasting(again) == lasting(finished)
        assert json.loads(kept.read_text()) == start


def test_studies_of_another_measure_propose_nothing(earlier: Path, tmp_path: Path) -> None:
    """What is best by accuracy need not serve the worst clients."""
    config = config_from(earlier, more=("search.objective=worst_clients", "search.budget=1"))
    start = run_workflow(config, tmp_path / "study", Display()).document["warm_start"]
    assert (start["proposals"], all(study["note"] for study in start["studies"])) == ([], True)
