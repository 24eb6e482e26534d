"""Compared baselines, recommenders and searchers, each a function of a federation and a search seed.

A searcher's choice is the best of its study, FedAvg included, without a confirmation, because the search is what is
evaluated. Its cost is the number of rounds of its trials in full trainings; the training of FedAvg, the reference of
every study, is not counted, nor is the detection that rules, warm starts and language models use. FedEx and FedPop have
no cost besides their own training, in which they tune.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedscout.engine.errors import ConfigurationError, FedscoutError, first_line
from fedscout.engine.text import did_you_mean, shown
from fedscout.experiments.config import StudyConfig, load_config
from fedscout.experiments.grids.federation_runner import Choice, ChoiceContext
from fedscout.experiments.models.request import is_import_path
from fedscout.experiments.studies.one_shot import language_model
from fedscout.search.confirmation.runs import tune
from fedscout.search.language_model import NAME as LLM_RECORD, has_key
from fedscout.search.ledger import BASELINE
from fedscout.search.recommenders.diagnosis import RecommendationContext, diagnose
from fedscout.search.recommenders.rules import recommend_by_rules
from fedscout.search.searcher import Proposal, Searcher, SearchTask
from fedscout.search.searchers.llm import LanguageModel, recommend_by_llm
from fedscout.search.study import StudyOutcome, context_of, run_study, search_by, study_space
from fedscout.search.warm_start import EarlierStudy, WarmStart, best_first, warm_start
from fedscout.strategies import SearchSpace, StrategySpec, parse_strategy
from fedscout.strategies.custom import imported_class

UNCONFIRMED = ("search.confirmation_seeds=0", "search.tuned_baseline=false")
LLM = "LLM"


@dataclass
class ChoiceTask:
    """A choice to be made on a federation, with a search seed.

    Attributes:
        earlier: Studies of other federations on the same seed, for warm starts.
        settings: Arguments of the choice besides the federation's, such as `recommender.format=A`.
    """

    context: ChoiceContext
    seed: int
    earlier: Sequence[EarlierStudy] = ()
    settings: Sequence[str] = ()

    def config(self, settings: Sequence[str] = ()) -> StudyConfig:
        """Return the configuration of a study on the federation."""
        arguments = (*self.context.arguments, "search.informed=false", *self.settings, *settings, *UNCONFIRMED)
        return load_config([*arguments, f"seed={self.seed}"])

    def others(self) -> list[EarlierStudy]:
        """Return the earlier studies usable here, none of which is of the same federation or data."""
        config = self.config()
        identity, digest = config.identity(), config.digest()
        return [
            study
            for study in self.earlier
            if not study.is_of(digest, identity, self.context.data_digest) and not study.is_of_data(identity)
        ]

    def recommendation_context(self) -> RecommendationContext:
        """Return the recommendation context."""
        diagnosis, config = diagnose(self.context.report(self.seed), self.context.feature_names), self.config()
        return context_of(study_space(config.search, self.context.facts), self.context.facts, diagnosis)


Choose = Callable[[ChoiceTask], Choice]


@dataclass(frozen=True)
class Recommender:
    """A method of choosing a strategy.

    Attributes:
        is_warm: Whether it learns from other federations, which must have been searched before.
        asks_model: Whether it queries a language model, or a record of one.
        in_tables: Whether a table of trials may contain its choices, so that it can be replayed.
    """

    name: str
    choose: Choose
    is_warm: bool = False
    asks_model: bool = False
    in_tables: bool = True

    def unavailable(self, config: StudyConfig, out: Path) -> str | None:
        """Return why it can't choose; None if it can. `out` is the folder of the measurement."""
        model = config.recommender
        if self.asks_model and model.replay is None and not has_key(model) and not (out / LLM_RECORD).exists():
            return (
                f"{model.api_key_variable} holds no API key, and recommender.replay=FILE names no record of a language "
                "model's answers"
            )
        return None


def _tuned_fedavg(task: ChoiceTask) -> Choice:
    config = task.config()
    ledger = task.context.ledger(config)
    (baseline,) = ledger.run([ledger.facts.trial("baseline", BASELINE)])
    rates = tune(config.search, ledger, baseline)
    return Choice(BASELINE, len(rates) - 1.0, learning_rate=rates[0].learning_rate)


def _language_model(task: ChoiceTask) -> Choice:
    with language_model(task.config(), task.context.out) as model:
        return Choice(recommend_by_llm(task.recommendation_context(), model).spec)


def searched(
    task: ChoiceTask, settings: Sequence[str] = (), start: WarmStart | None = None, model: LanguageModel | None = None
) -> StudyOutcome:
    """Return the outcome of a search with these settings, without a confirmation."""
    config, report = task.config(settings), task.context.report(task.seed)
    return run_study(config.search, task.context.ledger(config), report, start, model)


def _searching(settings: Sequence[str], first: Callable[[ChoiceTask], WarmStart | None] = lambda _: None) -> Choose:
    """Return a recommender that runs a study with these settings; `first` returns its warm start."""

    def choose(task: ChoiceTask) -> Choice:
        config, context = task.config(settings), task.context
        outcome = searched(task, settings, first(task))
        fedavg = outcome.baseline.fitness
        gains = [(trial.spec, trial.fitness - fedavg) for trial in outcome.full_trials]
        study = EarlierStudy(  # as a later one on another federation would read it from its folder
            name=f"{context.name}, {config.search.kind} {config.search.budget}, seed {config.seed}",
            config_hash=config.digest(),
            config=config.identity(),
            data_digest=context.data_digest,
            report=context.report(task.seed),
            gains=best_first(gains),
        )
        best = BASELINE if outcome.best is None else outcome.best.spec
        return Choice(best, outcome.trainings, study=study)

    return choose


def _from_earlier(task: ChoiceTask) -> WarmStart:
    """Return a warm start of one generation from the earlier studies of other data sets."""
    return warm_start(
        task.others(), task.recommendation_context(), task.config().search.generation_size, references=(BASELINE,)
    )


def _search_named(name: str) -> Recommender:
    """Return a searcher with kind, number of trials and `informed` as in its name, such as `genetic 8 informed`."""
    kind, *others = name.lower().split()
    settings = [f"search.budget={word}" if word.isdecimal() else f"search.{word}=true" for word in others]
    return Recommender(name, _searching((f"search.kind={kind}", *settings)))


SEARCHES = (
    *("genetic 4", "genetic 4 informed", "random 8", "genetic 8", "genetic 8 informed", "genetic 16"),
    *("genetic 16 informed", "genetic 32 informed", "TPE 8", "TPE 50", "racing", "racing informed"),
)
WARM = {
    "warm start 8": ("search.kind=genetic", "search.budget=8", "search.informed=true"),
    "warm racing": ("search.kind=racing", "search.informed=true"),
}
RECOMMENDERS: Mapping[str, Recommender] = {
    recommender.name: recommender
    for recommender in (
        Recommender("FedAvg", lambda _: Choice(BASELINE)),
        Recommender("tuned FedAvg", _tuned_fedavg),
        Recommender("rules", lambda task: Choice(recommend_by_rules(task.recommendation_context()).spec)),
        Recommender(LLM, _language_model, asks_model=True, in_tables=False),
        Recommender("FedEx", lambda _: Choice(parse_strategy("fedex")), in_tables=False),
        Recommender("FedPop", lambda _: Choice(parse_strategy("fedpop")), in_tables=False),
        *map(_search_named, SEARCHES),
        *(Recommender(name, _searching(settings, _from_earlier), is_warm=True) for name, settings in WARM.items()),
    )
}


def recommender_named(name: str) -> Recommender:
    """Return a recommender by its name, or by the import path of a searcher class.

    Raises:
        ConfigurationError: If the name is unknown.
        StrategyError: If the class can't be imported, is not a searcher or lacks a method.
    """
    if is_import_path(name):
        return own_recommender(name)
    if name not in RECOMMENDERS:
        known = ", ".join(RECOMMENDERS)
        raise ConfigurationError.of("a recommender", f"be one of {known}", repr(name), did_you_mean(name, RECOMMENDERS))
    return RECOMMENDERS[name]


def own_recommender(path: str) -> Recommender:
    """Return a recommender that uses the searcher class at an import path.

    Raises:
        StrategyError: If it can't be imported, is not a searcher or lacks a method.
    """
    searcher_class: type[Searcher] = imported_class(path, {"fedscout.search.searcher.Searcher": Searcher})

    def choose(task: ChoiceTask) -> Choice:
        config = task.config()
        ledger = task.context.ledger(config)
        facts = ledger.facts
        space = study_space(config.search, facts)
        search_task = SearchTask(
            space, facts.session.seed, config.search, facts.num_rounds, references=(BASELINE,), measure=facts.measure
        )
        try:
            outcome = search_by(_checked(path, searcher_class(search_task), space), config.search, ledger)
        except FedscoutError:
            raise
        except Exception as error:  # user code may raise anything
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{frame.filename}, line {frame.lineno}"
            raise ConfigurationError.of(
                path, "search without an error", f"{type(error).__name__}: {first_line(error)} ({where})"
            ) from error
        return Choice(BASELINE if outcome.best is None else outcome.best.spec, outcome.trainings)

    return Recommender(path, choose)


def _checked(path: str, searcher: Searcher, space: SearchSpace) -> Searcher:
    """Return a user's searcher, which raises a `ConfigurationError` if it proposes what a study can't train."""
    own_plan = searcher.plan

    def plan(num_proposals: int) -> list[Proposal]:
        proposals = own_plan(num_proposals)
        if len(proposals) > num_proposals:
            must = f"propose at most the {num_proposals} configurations requested"
            raise ConfigurationError.of(path, must, len(proposals))
        for spec in (proposal.spec for proposal in proposals):
            if not (isinstance(spec, StrategySpec) and space.contains(spec)):
                raise ConfigurationError.of(path, "propose configurations of task.space", shown(spec))
        return proposals

    searcher.plan = plan  # type: ignore[method-assign]
    return searcher
