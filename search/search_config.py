"""The configuration of a search and of what follows it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from fedscout.search.client_ranges import ClientRanges

View = Literal["own", "clean"]

ObjectiveName = Literal["accuracy", "worst_clients", "rounds_to_target", "bytes_to_target", "time_to_accuracy"]

HAS_TARGET = ("rounds_to_target", "bytes_to_target", "time_to_accuracy")
"""Objectives that tell what it takes to reach `search.target`."""

FINDS_FRONTS = ("genetic", "tpe", "gp", "racing", "random", "grid")
"""Searchers of two objectives. The others rank configurations by one number."""

INFORMED = frozenset({"genetic", "tpe", "gp", "racing"})
"""Whose first trials may come from the diagnosis. A random search and a grid are there to be compared with, CMA-ES has
one strategy, and a language model reads the diagnosis itself."""


KNOWLEDGE = "2026-11-26"
"""Of rules and priors, with which an informed search begins: another date with each change of theirs, as what is tried
then is another study."""


ONE_SHOT = "one_shot"
"""The kind that searches nothing and trains what is recommended without a trial."""


_OneOrMore = Annotated[tuple[str, ...], Field(min_length=1)]


class RacingConfig(BaseModel, frozen=True, extra="forbid"):
    """What a race may cost, and how fast it drops configurations."""

    trainings: float = Field(
        default=2.5, ge=1, le=10_000, description="of racing: budget in full trainings, in place of search.budget"
    )
    reduction_factor: int = Field(
        default=4, ge=2, le=100, description="of racing: one of so many goes on, for so many times the rounds"
    )
    min_rounds: int = Field(
        default=2, ge=1, le=1_000_000, description="of racing: fewest rounds before anybody drops out"
    )
    brackets: int = Field(
        default=1, ge=1, le=20, description="of racing: races that share the budget, each with one rung less"
    )


def _distinct(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if names is not None and (not names or len({*names}) < len(names)):
        raise ValueError(f"must name at least one, and each once, got {', '.join(names) or 'none'}")
    return names


def _list_of_one(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


def _list_of_all(given: Any) -> Any:
    return [given] if given == "all" else given


def _one_or_two_objectives(given: Any) -> Any:
    names = list(given) if isinstance(given, list | tuple) else [given]
    if len(names) not in (1, 2) or any(name not in get_args(ObjectiveName) for name in names):
        raise ValueError(f"must be one or two of {', '.join(get_args(ObjectiveName))}, got {given!r}")
    return names[0] if len(names) == 1 else tuple(names)


class SearchConfig(BaseModel, frozen=True, extra="forbid"):
    """How a strategy is searched for and its winner confirmed."""

    kind: Literal[
        "genetic", "tpe", "gp", "cmaes", "random", "grid", "racing", "multishot_llm", "llm_genetic", "one_shot"
    ] = Field(default="genetic", description="the searcher; one_shot searches nothing, and trains what is recommended")
    budget: int = Field(default=8, ge=1, le=10_000, description="trials, FedAvg as trial 0 not counted")
    generation_size: int = Field(default=4, ge=1, le=1000, description="trials evaluated at once")
    mutation_rate: float = Field(default=1.0, ge=0, le=1, description="share of children that are mutants")
    mutation_step: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="largest step of a mutant's real parameter, a share of its range; nothing is 0.1, or 0.3 where "
        "clients' settings are searched",
    )
    grid_points: int = Field(
        default=3,
        ge=1,
        le=1000,
        description="of kind grid: values of a real parameter, at most as many of a whole number",
    )
    ranges: Literal["default", "wide"] = Field(default="default", description="width of the parameters' ranges")
    strategies: Annotated[_OneOrMore | None, BeforeValidator(_list_of_all)] = Field(
        default=None,
        description="kinds to choose from, also pairs of them; all means every one, nothing the usual ones, that fit",
    )
    customs: tuple[dict[str, Any], ...] = Field(default=(), description="a user's own strategies with their ranges")
    client_ranges: ClientRanges = Field(default_factory=ClientRanges)
    selection: Annotated[tuple[str, ...] | None, BeforeValidator(_list_of_one), AfterValidator(_distinct)] = Field(
        default=None,
        description="selection policies to choose from, such as [random, oort, flash]; nothing keeps the study's",
    )
    informed: bool = Field(
        default=True, description="the first generation comes from the diagnosis; of genetic, tpe, gp and racing"
    )
    racing: RacingConfig = Field(default_factory=RacingConfig)
    warm_start: tuple[str, ...] = Field(
        default=(), description="folders of earlier studies, whose best configurations are tried first"
    )
    objective: Annotated[
        ObjectiveName | tuple[ObjectiveName, ObjectiveName], BeforeValidator(_one_or_two_objectives)
    ] = Field(
        default="accuracy",
        description="what is made as large as possible: accuracy, or training.metric in its place; that of the worst "
        "tenth of the clients; or the rounds, the bytes, or the simulated time, that are left when search.target is "
        "reached; or two of them, such as [accuracy, bytes_to_target], of which the front is found",
    )
    target: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="mean score of five rounds that is to be reached, where that is the objective"
    )
    view: View = Field(default="own", description="test data as clients have them, or uncorrupted, for the fitness")
    validation_fraction: float = Field(
        default=0.0, ge=0, lt=0.9, description="share of training rows that scores the search instead of test rows"
    )
    confirmation_seeds: int = Field(
        default=5, ge=0, le=1000, description="fresh seeds for winner and baselines, at most if they come in batches"
    )
    confirmation_top: int = Field(default=1, ge=1, le=100, description="best configurations that are confirmed")
    confirmation_batch: int | None = Field(
        default=None, ge=1, le=1000, description="fresh seeds until the next look; nothing means all at once"
    )
    tuned_baseline: bool = Field(default=True, description="also FedAvg at its best client learning rate")
    tuning_factors: tuple[Annotated[float, Field(gt=0, le=1000)], ...] = Field(
        default=(0.25, 0.5, 2.0, 4.0),
        min_length=1,
        description="multiples of the learning rate tried for the tuned baseline",
    )
    tuning_seeds: int = Field(
        default=2, ge=1, le=100, description="seeds over which the best two rates are compared, the search's included"
    )

    @model_validator(mode="after")
    def _target_of_an_objective(self) -> Self:
        named = ", ".join(self.objectives)
        wanted = any(name in HAS_TARGET for name in self.objectives)
        if wanted and self.target is None:
            raise ValueError(f"target must be given where objective={named}, such as target=0.9, got none")
        if not wanted and self.target is not None:
            raise ValueError(
                f"target must be left out unless objective is {' or '.join(HAS_TARGET)}, got {self.target:g} "
                f"beside objective={named}"
            )
        return self

    @model_validator(mode="after")
    def _front_of_two(self) -> Self:
        if len(self.objectives) == 1:
            return self
        if len({*self.objectives}) == 1:
            raise ValueError(f"objective must name two different ones for a front, got {', '.join(self.objectives)}")
        if self.kind not in FINDS_FRONTS:
            raise ValueError(
                f"kind must be {', '.join(FINDS_FRONTS[:-1])} or {FINDS_FRONTS[-1]} where objective names two, of "
                f"which the front is found, as the others rank by one number, got {self.kind}"
            )
        return self

    @model_validator(mode="after")
    def _one_answer(self) -> Self:
        if self.kind == ONE_SHOT and self.warm_start:
            raise ValueError(
                f"warm_start must be left out where kind={ONE_SHOT}, which trains the recommendation alone, "
                f"got {list(self.warm_start)}"
            )
        return self

    @property
    def trials_at_once(self) -> int:
        """How many proposals are trained side by side at most."""
        return 1 if self.kind in (ONE_SHOT, "multishot_llm") else self.generation_size

    @property
    def objectives(self) -> tuple[ObjectiveName, ...]:
        """What is made as large as possible; of two, verdicts are by the first."""
        return (self.objective,) if isinstance(self.objective, str) else self.objective

    @property
    def has_tuned_reference(self) -> bool:
        """Whether FedAvg is tuned: it is a reference of the confirmation, and without one there is no use for it."""
        return self.tuned_baseline and self.confirmation_seeds > 0

    @property
    def is_informed(self) -> bool:
        """Whether a diagnosis, if there is one, proposes the first trials."""
        return self.informed and self.kind in INFORMED
