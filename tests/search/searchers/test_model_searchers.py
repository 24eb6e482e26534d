"""Searchers that learn by a model: Optuna's samplers, CMA-ES, and a language model: what it is shown and kept."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cmaes import CMA
from optuna import create_study
from optuna.distributions import FloatDistribution
from optuna.logging import get_verbosity
from optuna.trial import FixedTrial, create_trial

from fedscout.engine.errors import ConfigurationError, NoValidAnswerError
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.trials.record import Trial
from fedscout.search.config import RecommenderConfig, SearchConfig
from fedscout.search.language_model import Chat, ChatReply, ChatRequest, RecordedChat, Transcript
from fedscout.search.searcher import Searcher
from fedscout.search.searchers.genetic import GeneticSearcher
from fedscout.search.searchers.llm import LanguageModel, LLMGeneticSearcher, MultiShotLLMSearcher
from fedscout.search.searchers.optuna import (
    CmaEsSearcher,
    Coordinates,
    GPSearcher,
    OptunaSearcher,
    TPESearcher,
    from_place,
    to_place,
)
from fedscout.search.study import StudyOutcome, run_study
from fedscout.strategies import (
    ChoiceRange,
    CustomSpec,
    FedAdamSpec,
    FedAvgSpec,
    IntegerRange,
    RealRange,
    SearchSpace,
    StrategySpec,
    space_of,
)
from fedscout.strategies.methods.averaging import FedProxSpec
from tests.kits.refusals import refused
from tests.search.recommenders.loopback import KEY, ModelServer, PlayedChat, says
from tests.search.recommenders.reports import report_of
from tests.search.searcher_conformance import (
    BATCH,
    BUDGET,
    COHORT,
    GenerationalLaws,
    SearcherLaws,
    client_space,
    proposals,
    some_fitness,
    task,
    trials,
    user_space,
)
from tests.search.studies import ScriptedRunner, completed, document, keep_trials, open_ledger

SPACE = space_of(COHORT)
SPACES = [SPACE, user_space(), client_space()]


class TestTPESearcher(GenerationalLaws):
    def make(self, space: SearchSpace, seed: int) -> Searcher:
        return TPESearcher(task(space, seed))


@pytest.mark.slow
class TestGPSearcher(GenerationalLaws):
    def make(self, space: SearchSpace, seed: int) -> Searcher:
        return GPSearcher(task(space, seed))

    @pytest.mark.parametrize("seed", [0, 1])
    def test_no_configuration_is_proposed_twice_nor_the_reference(self, space: SearchSpace, seed: int) -> None:
        super().test_no_configuration_is_proposed_twice_nor_the_reference(space, seed)


# Coordinates.


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("space", SPACES)
def test_a_configuration_survives_the_way_to_optuna_and_back(space: SearchSpace, padded: bool) -> None:
    coordinates = Coordinates(space, padded)
    generator = np.random.default_rng(0)
    for _ in range(200):
        spec = space.random(generator)
        encoded = coordinates.encode(spec)
        assert set(encoded) <= set(coordinates.distributions)
        assert set(encoded) == set(coordinates.distributions) or not padded
        assert coordinates.decode(FixedTrial(encoded)) == spec


def test_the_tree_holds_the_parameters_of_the_chosen_strategy_only() -> None:
    encoded = Coordinates(SPACE).encode(FedProxSpec(proximal_mu=0.01))
    assert encoded == {"strategy": "fedprox", "fedprox.proximal_mu": pytest.approx(0.5)}


def test_padded_coordinates_are_shared_by_name_and_in_the_middle_where_they_mean_nothing() -> None:
    """η of FedAdam and of FedYogi is one coordinate; 0.1 is the middle of [0.01, 1] in log space."""
    coordinates = Coordinates(space_of(COHORT, kinds=("fedadam", "fedyogi", "fedprox")), padded=True)
    assert set(coordinates.distributions) == {"strategy", "eta", "tau", "beta_1", "beta_2", "proximal_mu"}
    encoded = coordinates.encode(FedAdamSpec(eta=1.0))
    assert (encoded["eta"], encoded["proximal_mu"]) == (1.0, 0.5)


def test_clients_parameters_are_one_coordinate_for_all_strategies() -> None:
    names = set(Coordinates(client_space()).distributions)
    assert names == {"strategy", "fedprox.proximal_mu", "client_learning_rate", "client_local_epochs"}


def test_what_lies_outside_the_space_is_moved_to_its_border_or_left_out() -> None:
    coordinates = Coordinates(space_of(COHORT, kinds=("fedadam", "fedprox")))
    assert coordinates.encode(FedAdamSpec(eta=30))["fedadam.eta"] == 1.0
    assert coordinates.encode(FedAvgSpec()) is None
    own = CustomSpec.model_validate({"path": "a:B", "ranges": {"mode": {"choices": ["x", "y"]}}})
    users = Coordinates(SearchSpace(COHORT, {own.label: own}))
    assert users.encode(own.with_values({"mode": "z"})) is None
    assert users.encode(own) is None
    assert users.encode(own.with_values({"mode": "y"})) == {"strategy": "a:B", "a:B.mode": "y"}


@pytest.mark.parametrize("found", [IntegerRange(0, 7), IntegerRange(3, 3), IntegerRange(1, 2)])
def test_each_integer_has_a_cell_of_equal_width(found: IntegerRange) -> None:
    places = (np.arange(100 * found.num_values) + 0.5) / (100 * found.num_values)
    counts = Counter(from_place(found, float(place)) for place in places)
    assert counts == dict.fromkeys(range(found.low, found.high + 1), 100)
    middles = [to_place(found, value) for value in range(found.low, found.high + 1)]
    assert middles == pytest.approx([(index + 0.5) / found.num_values for index in range(found.num_values)])


def test_a_real_is_at_its_place_in_the_range() -> None:
    assert to_place(RealRange(0.01, 1, log=True), 0.1) == pytest.approx(0.5)
    assert from_place(RealRange(0, 4), 0.25) == 1.0


# The searchers.


@pytest.fixture(params=[TPESearcher, pytest.param(GPSearcher, marks=pytest.mark.slow)])
def make(request: pytest.FixtureRequest) -> Callable[..., OptunaSearcher]:
    found: Callable[..., OptunaSearcher] = request.param
    return found


def adam_is_good(spec: StrategySpec) -> Trial:
    """FedAdam at η = 0.1 is the best, other strategies are without distinction."""
    if not isinstance(spec, FedAdamSpec):
        return Trial(spec, fitness=0.3)
    place = SPACE.parameters_of("fedadam")["eta"].to_unit(spec.eta)  # type: ignore[union-attr]
    return Trial(spec, fitness=0.9 - (place - 0.5) ** 2)


@pytest.mark.sampled(1)
@pytest.mark.slow
def test_they_learn_which_strategy_is_good(make: Callable[..., OptunaSearcher]) -> None:
    """Of the last 24 trials, one in twelve would be FedAdam's by chance, and 9 but once in 10⁴ studies."""
    found = proposals(make(task(SPACE, budget=52)), adam_is_good, budget=52)
    assert sum(isinstance(spec, FedAdamSpec) for spec in found[-24:]) >= 9


def test_the_first_trials_are_random_whatever_they_bring(make: Callable[..., OptunaSearcher]) -> None:
    """Two generations before the sampler learns; the third depends on what they found."""
    good = proposals(make(task(SPACE, 1, budget=4 * BUDGET)), adam_is_good, budget=BUDGET + BATCH)
    bad = proposals(make(task(SPACE, 1, budget=4 * BUDGET)), some_fitness, budget=BUDGET + BATCH)
    assert good[:BUDGET] == bad[:BUDGET]
    assert good[BUDGET:] != bad[BUDGET:]


def test_failures_drive_them_away(make: Callable[..., OptunaSearcher]) -> None:
    """Every trial but FedProx's fails. By chance 9 of the last 24 would be FedProx's but once in 10⁴ studies."""

    def evaluate(spec: StrategySpec) -> Trial:
        return Trial(spec, fitness=0.5) if spec.kind == "fedprox" else Trial(spec, status="failed", error="diverged")

    found = proposals(make(task(SPACE, budget=52)), evaluate, budget=52)
    assert sum(spec.kind == "fedprox" for spec in found[-24:]) >= 9


def test_proposals_are_random_until_a_trial_goes_through(make: Callable[..., OptunaSearcher]) -> None:
    """40 trials of 11 kinds; one is missed with probability (10/11)^40 = 2 %, three of them next to never."""
    found = proposals(
        make(task(SPACE, budget=1)), lambda spec: Trial(spec, status="failed", error="diverged"), budget=40
    )
    assert len({spec.kind for spec in found}) >= 9


@pytest.mark.slow
def test_the_process_chooses_the_candidate_of_largest_expected_improvement() -> None:
    """Fitness rises along one coordinate and is flat along the other: of four corners the highest new one is chosen.

    Fails where Optuna no longer asks the private step that `candidate_sampler` replaces, or calls it otherwise.
    """
    from fedscout.search.searchers.optuna import candidate_sampler

    corners = {f"{x} {y}": {"x": x, "y": y} for x in (0.125, 0.875) for y in (0.125, 0.875)}
    taken = {"0.875 0.125"}
    distributions = {name: FloatDistribution(0.0, 1.0) for name in ("x", "y")}
    study = create_study(direction="maximize", sampler=candidate_sampler(0, lambda: corners, taken))
    for x in (0.0, 0.25, 0.5, 0.75):
        for y in (0.0, 0.5, 1.0):
            study.add_trial(create_trial(params={"x": x, "y": y}, distributions=distributions, value=x))
    assert study.ask(distributions).params == corners["0.875 0.875"]
    taken |= {*corners} - {"0.125 0.125"}
    assert study.ask(distributions).params == corners["0.125 0.125"]


@pytest.mark.slow
def test_optuna_is_imported_when_a_search_begins() -> None:
    code = "import fedscout.search.study, sys; assert not {'optuna', 'torch', 'scipy'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_optuna_keeps_silent_and_as_it_was(
    make: Callable[..., OptunaSearcher], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    verbosity = get_verbosity()
    with caplog.at_level(logging.INFO):
        proposals(make(task(SPACE)))
    assert capfd.readouterr() == ("", "")
    assert caplog.messages == []
    assert get_verbosity() == verbosity


# -- CMA-ES: the laws of every searcher, the package beside it, and the spaces that it refuses -------------------------


ADAM = space_of(COHORT, kinds=("fedadam",))


class TestCmaEsSearcher(GenerationalLaws):
    def make(self, space: SearchSpace, seed: int) -> Searcher:
        return CmaEsSearcher(task(space, seed))

    @pytest.fixture
    def space(self) -> SearchSpace:
        return ADAM

    def small_space(self) -> tuple[SearchSpace, int]:
        """Among four, a trimmed mean drops one at each end, which is the median, or nobody, which is a twin."""
        return self.space_with_twins(), 1

    def space_with_twins(self) -> SearchSpace:
        return space_of(Cohort(num_clients=4, num_sampled=4, client_learning_rate=0.2), kinds=("fedtrimmedavg",))

    def odd_spaces(self) -> list[SearchSpace]:
        rates = {"client_learning_rate": RealRange(0.01, 1.0, log=True)}
        return [space_of(COHORT, kinds=("fedprox",)), space_of(COHORT, kinds=("fedavg",), client_ranges=rates)]

    def test_a_space_of_the_reference_alone_has_nothing_to_propose(self) -> None:
        with refused(ConfigurationError, key="search.kind"):
            self.make(space_of(COHORT, kinds=("fedavg",)), 0)


# Beside the package on its own.


def places_of(spec: StrategySpec) -> np.ndarray:
    values = spec.search_values()
    return np.array([found.to_unit(values[name]) for name, found in ADAM.parameters_of("fedadam").items()])  # type: ignore[union-attr]


def test_the_package_is_told_where_each_configuration_was_evaluated_and_its_rank() -> None:
    """The mean is that of the package's own optimizer, told the same points."""
    searcher = CmaEsSearcher(task(ADAM, 1))
    found = list(trials(searcher, peak, budget=3 * BATCH))
    optimizer = CMA(np.full(4, 0.5), 0.3, population_size=BATCH)
    for start in range(0, 3 * BATCH, BATCH):
        optimizer.tell([(places_of(each.spec), -each.fitness) for each in found[start : start + BATCH]])
    assert searcher.told(found).mean == pytest.approx(optimizer.mean)


@pytest.mark.parametrize("population", [2, 3, 4, 10, 40])
@pytest.mark.parametrize("kind", ["fedprox", "fedavgm", "fedadam"])
def test_any_population_learns_in_any_number_of_dimensions(kind: str, population: int) -> None:
    """One, two and four parameters; generations of two and three have a single parent."""
    searcher = CmaEsSearcher(task(space_of(COHORT, kinds=(kind,)), generation_size=population))
    found = list(trials(searcher, some_fitness, budget=3 * population, batch=population))
    mean = searcher.told(found).mean
    assert np.isfinite(mean).all()
    assert (mean != 0.5).all()


# The searcher.


def peak(spec: StrategySpec) -> Trial:
    """Highest where all places are 0.8."""
    return Trial(spec, fitness=1 - float(np.mean((places_of(spec) - 0.8) ** 2)))


def test_only_the_order_of_fitness_matters() -> None:
    """CMA-ES is invariant to monotone transformations of fitness."""
    bent = proposals(CmaEsSearcher(task(ADAM, 2)), lambda spec: Trial(spec, fitness=peak(spec).fitness ** 9), budget=24)
    assert proposals(CmaEsSearcher(task(ADAM, 2)), peak, budget=24) == bent


def test_the_first_draws_are_around_the_middle() -> None:
    """Standard deviations of 0.3, of which the cube cuts off what is beyond 0.5.

    The variance of a normal distribution cut at ±a standard deviations is 1 − 2aφ(a)/(2Φ(a) − 1): with a = 5/3 it is
    1 − 2·1.667·0.0995/0.9044 = 0.633. Of 400 places, means differ by at most 5 standard errors.
    """
    places = np.concatenate([places_of(spec) for spec in CmaEsSearcher(task(ADAM, generation_size=100)).ask(100)])
    assert abs(places.mean() - 0.5) < 5 * 0.3 / 20
    assert places.std() == pytest.approx(0.3 * np.sqrt(0.633), rel=5 / np.sqrt(2 * 400))


@pytest.mark.parametrize(
    "space",
    [
        space_of(COHORT, kinds=("fedadam", "fedyogi")),
        space_of(COHORT, kinds=("multikrum",)),
        space_of(COHORT, kinds=("fedmedian",)),
        client_space(),
        space_of(COHORT, kinds=("fedadam",), client_ranges={"selection": ChoiceRange(("random", "oort"))}),
    ],
)
def test_other_spaces_are_refused_with_what_would_help(space: SearchSpace) -> None:
    with refused(ConfigurationError, key="search.kind"):
        CmaEsSearcher(task(space))


def test_faults_of_space_and_generation_are_told_at_once() -> None:
    with refused(ConfigurationError, key="search.generation_size", given=1) as caught:
        CmaEsSearcher(task(space_of(COHORT), generation_size=1))
    assert caught.value.keys == ("search.kind", "search.generation_size")


# -- Searches by a language model: the laws of all searchers, what the model is shown, and what a study keeps ----------


SETTINGS = RecommenderConfig()


def multi_shot(space: SearchSpace, seed: int, chat: Chat | None = None, population: int = 4) -> MultiShotLLMSearcher:
    model = LanguageModel(chat or PlayedChat(space), SETTINGS)
    return MultiShotLLMSearcher(task(space, seed, generation_size=population), model)


def hybrid(space: SearchSpace, seed: int, chat: Chat | None = None) -> LLMGeneticSearcher:
    return LLMGeneticSearcher(task(space, seed), LanguageModel(chat or PlayedChat(space), SETTINGS))


class TestMultiShot(SearcherLaws):
    def make(self, space: SearchSpace, seed: int) -> Searcher:
        return multi_shot(space, seed)


class TestHybrid(SearcherLaws):
    def make(self, space: SearchSpace, seed: int) -> Searcher:
        return hybrid(space, seed)


class Scripted:
    """A chat that gives these answers in turn, the last one for ever, and keeps what it was asked."""

    def __init__(self, *texts: str) -> None:
        self._texts = texts
        self.asked: list[ChatRequest] = []

    def complete(self, request: ChatRequest) -> ChatReply:
        self.asked.append(request)
        return ChatReply(text=self._texts[min(len(self.asked), len(self._texts)) - 1])

    def shown(self, number: int) -> dict[str, Any]:
        """What the user's first message of a request held."""
        return json.loads(self.asked[number].messages[1].content)


def prox(mu: float) -> str:
    return json.dumps({"kind": "fedprox", "proximal_mu": mu})


ALL_OF_MULTIKRUM = '{"kind": "multikrum", "num_malicious_nodes": 0, "num_nodes_to_select": 10}'


def asked_one_by_one(searcher: Searcher, count: int) -> list[StrategySpec]:
    """Ask for trials, each of which is told before the next is asked for."""
    found = []
    for _ in range(count):
        (spec,) = searcher.ask(count)
        searcher.tell([some_fitness(spec)])
        found.append(spec)
    return found


def test_the_model_is_shown_every_earlier_trial_with_its_result_best_first() -> None:
    chat = Scripted(prox(0.1), prox(0.2), prox(0.3))
    searcher = multi_shot(SPACE, 5, chat)
    assert searcher.ask(4) == [FedProxSpec(proximal_mu=0.1)]
    searcher.tell([Trial(FedProxSpec(proximal_mu=0.1), status="failed", error="reason with /a/path in it")])
    assert searcher.ask(4) == [FedProxSpec(proximal_mu=0.2)]
    searcher.tell([Trial(FedProxSpec(proximal_mu=0.2), fitness=0.25)])
    assert searcher.ask(4) == [FedProxSpec(proximal_mu=0.3)]
    bad = {"trial": 1, "strategy": {"kind": "fedprox", "proximal_mu": 0.1}, "fitness": 0.0, "failed": True}
    good = {"trial": 2, "strategy": {"kind": "fedprox", "proximal_mu": 0.2}, "fitness": 0.25}
    shown = [chat.shown(number) for number in range(3)]
    assert [told["trials"] for told in shown] == [[], [bad], [good, bad]]
    assert all(list(told) == ["trials", "what_to_do"] for told in shown)  # the question stands last
    assert {request.seed for request in chat.asked} == {5}


@pytest.mark.parametrize("repeated", [prox(0.1), '{"kind": "fedavg"}', ALL_OF_MULTIKRUM])
def test_a_repetition_or_a_twin_of_fedavg_goes_back_with_what_was_tried_and_then_with_temperature(
    repeated: str,
) -> None:
    chat = Scripted(prox(0.1), repeated, repeated, repeated, prox(0.2))
    searcher = multi_shot(SPACE, 0, chat)
    assert asked_one_by_one(searcher, 2) == [FedProxSpec(proximal_mu=0.1), FedProxSpec(proximal_mu=0.2)]
    for request in chat.asked[2:]:
        told = json.loads(request.messages[-1].content)
        assert told["already_tried"] == [{"kind": "fedprox", "proximal_mu": 0.1}, {"kind": "fedavg"}]
        assert ("is that of trial 1" in told["your_answer_is_not_valid"][0]) == (repeated == prox(0.1))
    assert [request.temperature for request in chat.asked] == [0.0, 0.0, 0.0, 0.7, 1.0]
    assert searcher.notes() == []


def test_a_temperature_that_was_asked_for_is_never_lowered() -> None:
    chat = Scripted(prox(0.1))
    model = LanguageModel(chat, RecommenderConfig(temperature=0.9))
    asked_one_by_one(MultiShotLLMSearcher(task(SPACE, 0), model), 2)
    assert [request.temperature for request in chat.asked] == [0.9, 0.9, 0.9, 0.9, 1.0]


@pytest.mark.parametrize("last", [prox(0.1), "no idea"])
def test_from_a_trial_for_which_a_model_only_repeats_itself_the_genetic_search_goes_on(last: str) -> None:
    """Trial 3 is refused four times, or three times before an answer that can't be read; then nothing is asked."""
    chat = Scripted(prox(0.1), prox(0.2), *[prox(0.1)] * 3, last)
    searcher, genetic = multi_shot(SPACE, 0, chat), GeneticSearcher(task(SPACE, 0))
    genetic.tell([some_fitness(spec) for spec in asked_one_by_one(searcher, 2)])
    for _ in range(6):
        (spec,) = searcher.ask(1)
        assert [spec] == genetic.ask(1)
        for each in (searcher, genetic):
            each.tell([some_fitness(spec)])
    assert len({SPACE.digest(trial.spec) for trial in searcher.archive.searched}) == 8
    assert len(chat.asked) == 6
    (note,) = searcher.notes()
    assert "trial 3" in note
    assert "6 of 8 trials" in note


def test_a_searcher_that_is_told_the_earlier_trials_knows_where_the_model_gave_up() -> None:
    stubborn = Scripted(prox(0.1))
    searcher = multi_shot(SPACE, 0, stubborn)
    told = [some_fitness(spec) for spec in asked_one_by_one(searcher, 5)]
    resumed = multi_shot(SPACE, 0, Scripted(prox(0.1)))
    resumed.tell(told)
    assert resumed.ask(1) == searcher.ask(1)
    assert resumed.notes() == searcher.notes()


def test_for_trials_that_were_given_the_model_is_not_asked() -> None:
    chat, first = Scripted(prox(0.3)), [FedProxSpec(proximal_mu=mu) for mu in (0.1, 0.2)]
    searcher = MultiShotLLMSearcher(task(SPACE, first=first), LanguageModel(chat, SETTINGS))
    assert asked_one_by_one(searcher, 3) == [*first, FedProxSpec(proximal_mu=0.3)]
    assert len(chat.asked) == 1


def test_a_model_that_gives_no_valid_answer_stops_the_search() -> None:
    chat = Scripted("no idea")
    with pytest.raises(NoValidAnswerError):
        multi_shot(SPACE, 0, chat).ask(1)
    assert len(chat.asked) == 4


def test_the_hybrid_goes_on_from_the_models_generation_as_the_genetic_search_would() -> None:
    chat = PlayedChat(SPACE)
    searcher, genetic = hybrid(SPACE, 3, chat), GeneticSearcher(task(SPACE, 3))
    first = asked_one_by_one(searcher, 4)
    assert first == asked_one_by_one(multi_shot(SPACE, 3), 4)
    genetic.tell([some_fitness(spec) for spec in first])
    asked = chat.num_asked
    for _ in range(3):
        children = searcher.ask(4)
        assert len(children) == 4
        assert children == genetic.ask(4)
        for each in (searcher, genetic):
            each.tell([some_fitness(spec) for spec in children])
    assert chat.num_asked == asked


def test_where_the_model_has_less_than_a_generation_the_hybrid_fills_it() -> None:
    searcher = hybrid(SPACE, 3, Scripted(prox(0.1)))
    found = proposals(searcher)
    assert found[0] == FedProxSpec(proximal_mu=0.1)
    assert len({SPACE.digest(spec) for spec in found}) == 8


# In a study, with the real client.


@pytest.fixture
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def by_spec(spec: Any) -> Any:
    return completed(some_fitness(spec.strategy).fitness)


def studied(folder: Path, url: str, config: SearchConfig, runner: ScriptedRunner | None = None) -> StudyOutcome:
    """Run a study that asks the server at an address, or the rest of one."""
    settings = RecommenderConfig(base_url=url, connection_retries=0)
    with RecordedChat(settings, Transcript(folder / "llm.jsonl")) as chat:
        ledger = open_ledger(folder, runner or ScriptedRunner(by_spec), cohort=COHORT)
        return run_study(config, ledger, report_of(), model=LanguageModel(chat, settings))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["multishot_llm", "llm_genetic"])
@pytest.mark.usefixtures("_key")
def test_a_study_that_was_cut_off_asks_nothing_twice(tmp_path: Path, kind: Any) -> None:
    config, played = SearchConfig(kind=kind, budget=8, confirmation_seeds=0), PlayedChat(SPACE)

    with ModelServer(
        lambda asked: says(played.answer(asked.body["seed"], [text for _, text in asked.turns]))
    ) as server:
        whole = document(studied(tmp_path / "whole", server.url, config))
        num_asked = len(server.asked)
        assert num_asked >= (8 if kind == "multishot_llm" else 4)
        assert server.asked[0].user["diagnosis"]["label_skew"] == "no"
        for num_kept in (0, 1, 5, 9):
            again = tmp_path / f"kept {num_kept}"
            keep_trials(tmp_path / "whole", again, range(num_kept).__contains__)
            (again / "llm.jsonl").write_bytes((tmp_path / "whole" / "llm.jsonl").read_bytes())
            assert document(studied(again, server.url, config)) == whole
        assert len(server.asked) == num_asked

        # a record that lacks its end is completed
        cut = tmp_path / "cut"
        cut.mkdir()
        lines = (tmp_path / "whole" / "llm.jsonl").read_text().splitlines(keepends=True)
        (cut / "llm.jsonl").write_text("".join(lines[:2]))
        assert document(studied(cut, server.url, config)) == whole
        assert len(server.asked) == 2 * num_asked - 2


@pytest.mark.slow
@pytest.mark.usefixtures("_key")
def test_a_study_that_failed_at_the_model_goes_on_in_its_folder(tmp_path: Path) -> None:
    """The model says nothing of use for the third trial until the study is run again; the first two are kept."""
    config, runner = SearchConfig(kind="multishot_llm", budget=3, confirmation_seeds=0), ScriptedRunner(by_spec)
    answers = iter([prox(0.1), prox(0.2), *["no idea"] * 4, prox(0.3)])
    with ModelServer(lambda _: says(next(answers))) as server:
        with pytest.raises(NoValidAnswerError):
            studied(tmp_path, server.url, config, runner)
        trained = len(runner.ran)
        found = studied(tmp_path, server.url, config, runner)
        assert [trial.spec for trial in found.trials] == [FedProxSpec(proximal_mu=mu) for mu in (0.1, 0.2, 0.3)]
        assert len(runner.ran) == trained + 1
        assert len(server.asked) == 7
        assert document(studied(tmp_path, server.url, config, runner)) == document(found)
        assert len(server.asked) == 7
