"""Who chooses: baselines, recommenders, searchers, each as a function of a federation and a search seed.

A searcher's pick is the best of its study, FedAvg included, without a confirmation: what is measured is the search. Its
cost counts the rounds of its trials in full trainings; the training of FedAvg, with which every study is compared, is
not counted, nor is the detection that rules, warm starts and language models rest on. FedEx and FedPop cost nothing
beside their own training, in which they tune. What was trained on other federations for it stands beside the cost
(`choice_archives`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fedscout.detectors import HeterogeneityReport
from fedscout.experiments.benchmarks.choice.choice_archives import Archived, rested_on, together, trained_by
from fedscout.experiments.benchmarks.choice.choice_laboratory import Pick
from fedscout.experiments.config.config_file import load_config
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.studies.study_language_model import language_model
from fedscout.search.confirmation.rate_tuning import tune
from fedscout.search.language_model.openai_chat import has_key
from fedscout.search.language_model.record import NAME as LLM_RECORD
from fedscout.search.ledger import Ledger
from fedscout.search.recommenders.diagnosis import diagnose
from fedscout.search.recommenders.llm_recommender import recommend_by_llm
from fedscout.search.recommenders.recommendation import Situation
from fedscout.search.recommenders.rules import recommend_by_rules
from fedscout.search.study.earlier_studies import EarlierStudy, best_first
from fedscout.search.study.study import run_study
from fedscout.search.study.warm_start import WarmStart, warm_start
from fedscout.search.study_trials import BASELINE
from fedscout.strategies import SearchSpace, parse_strategy

UNCONFIRMED = ("search.confirmation_seeds=0", "search.tuned_baseline=false")
UNINFORMED = "search.informed=false"


class AnyLaboratory(Protocol):
    """Where a chooser finds what it may know of a federation, and has it tried."""

    @property
    def name(self) -> str:
        """Of the federation."""
        ...

    @property
    def arguments(self) -> tuple[str, ...]:
        """As for `fedscout run`."""
        ...

    @property
    def config(self) -> StudyConfig:
        """What the arguments say."""
        ...

    @property
    def space(self) -> SearchSpace:
        """What can be chosen."""
        ...

    @property
    def data_digest(self) -> str:
        """Of its rows and who holds which."""
        ...

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Of its columns; none where they are not known."""
        ...

    @property
    def out(self) -> Path:
        """The folder of a language model's answers; a replay asks none."""
        ...

    def report(self, seed: int) -> HeterogeneityReport:
        """Return how the clients' data differ."""
        ...

    def ledger(self, config: StudyConfig) -> Ledger:
        """Return a new ledger of a study on this federation."""
        ...


@dataclass
class Choosing:
    """One choice to be made: on a federation, with the seed of a search.

    Attributes:
        earlier: Studies of other federations on the same seed, for warm starts.
        searched: Filled with what a search has tried, for others' warm starts.
    """

    laboratory: AnyLaboratory
    seed: int
    earlier: Sequence[Archived] = ()
    searched: list[Archived] = field(default_factory=list)

    def config(self, settings: Sequence[str] = ()) -> StudyConfig:
        """Return the configuration of a study on the federation."""
        arguments = (*self.laboratory.arguments, UNINFORMED, *settings, *UNCONFIRMED)
        return load_config([*arguments, f"seed={self.seed}"])

    def others(self) -> list[Archived]:
        """Return the earlier studies that may be read here: never one of the same federation or the same data."""
        config = self.config()
        identity, digest = config.identity(), config.digest()
        return [
            each
            for each in self.earlier
            if not each.study.is_of(digest, identity, self.laboratory.data_digest)
            and not each.study.is_of_data(identity)
        ]

    def situation(self) -> Situation:
        """Return what a recommender is told."""
        laboratory = self.laboratory
        return Situation(
            space=laboratory.space,
            num_rounds=laboratory.config.training.num_rounds,
            view=laboratory.config.search.view,
            diagnosis=diagnose(laboratory.report(self.seed), laboratory.feature_names),
        )


Choose = Callable[[Choosing], Pick]


@dataclass(frozen=True)
class Chooser:
    """One way to choose.

    Attributes:
        is_warm: Whether it learns from the other federations, which must have been searched before.
        asks_model: Whether it asks a language model, or a record of one.
        in_tables: Whether a table of trials may hold what it picks, so that it can be replayed.
    """

    name: str
    choose: Choose
    is_warm: bool = False
    asks_model: bool = False
    in_tables: bool = True

    def unavailable(self, config: StudyConfig, out: Path) -> str | None:
        """Return why it can't choose on a federation; None if it can. `out` is the folder of the measurement."""
        model = config.recommender
        if self.asks_model and model.replay is None and not has_key(model) and not (out / LLM_RECORD).exists():
            return (
                f"there is no key in {model.api_key_variable}, and no record of a language model's answers was given "
                "(recommender.replay=FILE)"
            )
        return None


def _tuned_fedavg(choosing: Choosing) -> Pick:
    config = choosing.config()
    ledger = choosing.laboratory.ledger(config)
    (baseline,) = ledger.run([ledger.facts.trial("baseline", BASELINE)])
    rates = tune(config.search, ledger, baseline)
    cost = sum(len(rate.trials) for rate in rates) - 1
    return Pick(BASELINE, float(cost), learning_rate=rates[0].learning_rate)


def _language_model(choosing: Choosing) -> Pick:
    with language_model(choosing.config(), choosing.laboratory.out) as model:
        return Pick(recommend_by_llm(choosing.situation(), model).spec)


def _searching(settings: Sequence[str], first: Callable[[Choosing], WarmStart | None] = lambda _: None) -> Choose:
    """Return the choice of a study with these settings; `first` is tried before anything of the searcher's own."""

    def choose(choosing: Choosing) -> Pick:
        config = choosing.config(settings)
        laboratory = choosing.laboratory
        report = laboratory.report(choosing.seed)
        ledger, start = laboratory.ledger(config), first(choosing)
        outcome = run_study(config.search, ledger, report, start)
        read = [each.trained for each in choosing.others()] if start is not None else []
        rests_on = together([*read, rested_on(outcome, ledger.facts)])
        fedavg = outcome.baseline.fitness
        gains = [(trial.spec, trial.fitness - fedavg) for trial in outcome.whole_trials]
        study = EarlierStudy(  # as a later one on another federation would read it from its folder
            name=f"{laboratory.name}, {config.search.kind} {config.search.budget}, seed {config.seed}",
            config_hash=config.digest(),
            config=config.identity(),
            data_digest=laboratory.data_digest,
            report=report.model_dump(mode="json"),
            gains=best_first(gains),
        )
        choosing.searched.append(
            Archived(study, together([trained_by(outcome, ledger.facts, laboratory.name), rests_on]))
        )
        best = BASELINE if outcome.best is None else outcome.best.spec
        return Pick(best, outcome.trainings, archive=sum(rests_on.values()))

    return choose


def _from_earlier(choosing: Choosing) -> WarmStart:
    """Return the best of similar federations, never of the same data: as many as a study would try first."""
    laboratory = choosing.laboratory
    config = choosing.config()
    return warm_start(
        [each.study for each in choosing.others()],
        laboratory.report(choosing.seed).model_dump(mode="json"),
        config.training.model_dump(mode="json"),
        laboratory.space,
        config.search.generation_size,
        references=(BASELINE,),
    )


GENETIC = ("search.kind=genetic", "search.budget=8")
INFORMED = (*GENETIC, "search.informed=true")
RACING = ("search.kind=racing",)

TUNED = Chooser("tuned FedAvg", _tuned_fedavg)
"""A chooser, and the reference of R_t."""

CHOOSERS: Mapping[str, Chooser] = {
    chooser.name: chooser
    for chooser in (
        Chooser("FedAvg", lambda _: Pick(BASELINE)),
        TUNED,
        Chooser("rules", lambda choosing: Pick(recommend_by_rules(choosing.situation()).spec)),
        Chooser("LLM", _language_model, asks_model=True, in_tables=False),
        Chooser("FedEx", lambda _: Pick(parse_strategy("fedex")), in_tables=False),
        Chooser("FedPop", lambda _: Pick(parse_strategy("fedpop")), in_tables=False),
        Chooser("genetic 4", _searching((GENETIC[0], "search.budget=4"))),
        Chooser("genetic 4 informed", _searching((*INFORMED, "search.budget=4"))),
        Chooser("random 8", _searching(("search.kind=random", "search.budget=8"))),
        Chooser("genetic 8", _searching(GENETIC)),
        Chooser("genetic 8 informed", _searching(INFORMED)),
        Chooser("genetic 16", _searching((GENETIC[0], "search.budget=16"))),
        Chooser("genetic 16 informed", _searching((*INFORMED, "search.budget=16"))),
        Chooser("genetic 32 informed", _searching((*INFORMED, "search.budget=32"))),
        Chooser("TPE 8", _searching(("search.kind=tpe", "search.budget=8"))),
        Chooser("TPE 50", _searching(("search.kind=tpe", "search.budget=50"))),
        Chooser("racing", _searching(RACING)),
        Chooser("racing informed", _searching((*RACING, "search.informed=true"))),
        Chooser("warm start 8", _searching(GENETIC, _from_earlier), is_warm=True),
        Chooser("warm racing", _searching(RACING, _from_earlier), is_warm=True),
    )
}
