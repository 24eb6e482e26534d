"""The configuration of a study: a YAML file and `dotted.key=value` arguments over validated models.

Unknown keys are errors, all faults are reported at once, and the whole configuration is logged with every trial.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from fedscout.detectors.detection_config import DetectionConfig
from fedscout.engine.contracts.local_training_config import ADDED_TERMS, LocalTraining
from fedscout.engine.engine_config import EngineConfig
from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.fault_text import shown
from fedscout.engine.messages.session import Session
from fedscout.engine.metrics.metric import Metric
from fedscout.engine.metrics.metric_table import ACCURACY
from fedscout.engine.metrics.quantity_errors import R2
from fedscout.experiments.federations.assembly.federation_config import FederationConfig, ModelConfig
from fedscout.experiments.federations.environments.environment_table import ENVIRONMENTS
from fedscout.search.client_settings_config import ClientSettingsConfig
from fedscout.search.recommender_config import NO_PART_OF_THE_IDENTITY, RecommenderConfig
from fedscout.search.search_config import KNOWLEDGE, SearchConfig

AUTO, MOST_AUTO_ROUNDS = "auto", 200
"""`training.num_rounds=auto` is short for `training.level_off` and so many rounds at most."""

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class TrainingConfig(LocalTraining):
    """Rounds of federated training, and the local training in each."""

    num_rounds: int = Field(
        default=30,
        ge=1,
        le=1_000_000,
        description="rounds a trial; auto: until FedAvg levels off, at most 200",
        json_schema_extra={"or": "auto"},
    )
    repetitions: int = Field(
        default=1, ge=1, le=99, description="trainings of a trial, an odd number, whose median it counts as"
    )
    level_off: bool = Field(
        default=False, description="of run, search and sweep: fewer rounds than num_rounds if FedAvg levels off before"
    )
    fraction_train: float = Field(default=1.0, gt=0, le=1, description="share of the clients that train in a round")
    scored_clients: int | None = Field(
        default=None,
        ge=1,
        description="so many clients, drawn from the seed, score each model; nothing means all of them",
    )
    test_fraction: float = Field(default=0.2, gt=0, lt=1, description="share of each client's rows kept for testing")
    trial_timeout_seconds: Seconds | None = Field(default=None, description="after which a trial fails; nothing waits")
    round_timeout_seconds: Seconds | None = Field(
        default=None,
        description="after which a host that is still at its part of a round is replaced, on Ray; nothing waits",
    )
    hanging_clients: Literal["drop", "fail"] = Field(
        default="drop",
        description="a client that alone takes that long: drop leaves it out of the round, fail fails the trial",
    )
    simulated_deadline_seconds: Seconds | None = Field(
        default=None,
        description="of a round, for clients whose rounds take simulated time: who would take longer is left out; "
        "nothing waits for all",
    )
    backend: Literal["auto", "loop"] = Field(
        default="auto", description="loop trains clients one by one where auto would train many at once"
    )
    metric: Literal["accuracy", "balanced_accuracy", "macro_f1", "auroc", "r2", "mae"] | None = Field(
        default=None,
        description="what makes a model good on the test rows of all clients together; nothing means accuracy, or r2 "
        "where a quantity is predicted",
    )

    @model_validator(mode="before")
    @classmethod
    def _auto(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("num_rounds") == AUTO:
            if given.get("level_off", True) is not True:
                raise ValueError("level_off must be left out where num_rounds is auto, got " + repr(given["level_off"]))
            return {**given, "num_rounds": MOST_AUTO_ROUNDS, "level_off": True}
        return given

    @field_validator("num_rounds", mode="before")
    @classmethod
    def _number_or_auto(cls, given: Any) -> Any:
        if isinstance(given, str) and not given.strip().lstrip("+-").isdecimal():
            raise ValueError(f"must be a whole number or {AUTO}, got {shown(given)}")
        return given

    @field_validator("repetitions")
    @classmethod
    def _median_is_of_one_training(cls, repetitions: int) -> int:
        if repetitions % 2 == 0:
            raise ValueError(f"must be odd, so that the median is that of one training, got {repetitions}")
        return repetitions

    def local(self) -> LocalTraining:
        """Return the clients' part."""
        return LocalTraining(**{name: getattr(self, name) for name in LocalTraining.model_fields})

    def session(
        self, seed: int, validation_fraction: float = 0.0, metric: Metric | None = None, worst_clients: bool = False
    ) -> Session:
        """Return what every trial fixes for its messages.

        Args:
            seed: Of split, initial model and batches.
            validation_fraction: Share of validation rows, cut from training rows.
            metric: What is measured beside accuracy.
            worst_clients: Whether the worst clients' score is kept for each round.
        """
        return Session(
            seed=seed,
            training=self.local(),
            test_fraction=self.test_fraction,
            validation_fraction=validation_fraction,
            backend=self.backend,
            round_timeout_seconds=self.round_timeout_seconds,
            hanging_clients=self.hanging_clients,
            deadline_seconds=self.simulated_deadline_seconds,
            metric=metric,
            num_scored=self.scored_clients,
            worst_clients=worst_clients,
        )

    @property
    def has_time_limit(self) -> bool:
        """Whether a trial or a round is given up after some time."""
        return self.trial_timeout_seconds is not None or self.round_timeout_seconds is not None

    def num_sampled(self, num_clients: int) -> int:
        """Return how many clients train in a round: the nearest whole number, at least one."""
        return min(num_clients, max(1, round(self.fraction_train * num_clients)))


class StudyConfig(BaseModel):
    """Everything that a study can be told. The defaults are the demo."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    federation: FederationConfig = Field(default_factory=FederationConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    detection: DetectionConfig = Field(default_factory=DetectionConfig)
    strategy: dict[str, Any] | None = Field(default=None, description="of `fedscout train`: kind and parameters")
    selection: dict[str, Any] | None = Field(
        default=None,
        description="who trains in a round: kind of a policy and its parameters; nothing leaves it to the strategy",
    )
    client_settings: ClientSettingsConfig = Field(default_factory=ClientSettingsConfig)
    search: SearchConfig = Field(default_factory=SearchConfig)
    recommender: RecommenderConfig = Field(default_factory=RecommenderConfig)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    seed: int = Field(default=0, ge=0, le=2**31 - 1, description="of split, initial model, batches and search")

    @model_validator(mode="before")
    @classmethod
    def _training_of_the_environment(cls, given: Any) -> Any:
        """Let an environment say how clients train where nothing is said: the defaults are made for rows."""
        federation = given.get("federation") if isinstance(given, Mapping) else None
        name = federation.get("dataset") if isinstance(federation, Mapping) else getattr(federation, "dataset", None)
        kind = ENVIRONMENTS.get(name) if isinstance(name, str) else None
        training = given.get("training", {}) if isinstance(given, Mapping) else None
        if kind is None or not isinstance(training, Mapping):
            return given
        return {**given, "training": {**kind.training, **training}}

    @model_validator(mode="before")
    @classmethod
    def _no_rate_to_tune(cls, given: Any) -> Any:
        """Leave FedAvg's client rate untuned where a table says every client's, unless that is asked for."""
        table = given.get("client_settings") if isinstance(given, Mapping) else None
        search = given.get("search", {}) if isinstance(given, Mapping) else None
        if not isinstance(table, Mapping) or table.get("kind") is None or not isinstance(search, Mapping):
            return given
        return {**given, "search": {"tuned_baseline": False, **search}}

    @model_validator(mode="after")
    def _rates_come_from_one_place(self) -> Self:
        if self.client_settings.kind is not None and self.search.tuned_baseline:
            raise ValueError("search.tuned_baseline must be false where client_settings says every client's rate")
        return self

    @field_validator("training")
    @classmethod
    def _players_have_no_batches(cls, training: TrainingConfig, info: ValidationInfo) -> TrainingConfig:
        federation = info.data.get("federation")
        if training.is_narrow and federation is not None and federation.dataset in ENVIRONMENTS:
            raise ValueError(f"precision must be float32 where clients play episodes, got {training.precision}")
        return training

    @field_validator("training")
    @classmethod
    def _added_terms_are_of_classes(cls, training: TrainingConfig, info: ValidationInfo) -> TrainingConfig:
        federation = info.data.get("federation")
        if federation is None or not training.is_weighed:
            return training
        plays = federation.dataset in ENVIRONMENTS
        if plays or federation.predicts_quantity:
            given = ", ".join(f"{name}={value:g}" for name in ADDED_TERMS if (value := getattr(training, name)))
            where = "clients play episodes" if plays else "a quantity is predicted"
            raise ValueError(f"must add nothing to the loss where {where}: its terms are of classes, got {given}")
        return training

    @property
    def named_strategies(self) -> tuple[str, ...]:
        """The kinds that are asked for by name, known or not."""
        trained = () if self.strategy is None else (str(self.strategy.get("kind")),)
        return (*(self.search.strategies or ()), *trained)

    @property
    def chooses_clients(self) -> bool:
        """Whether a selection policy says who trains, in some trials at least."""
        named = (self.strategy or {}).get("selection")
        return any(said is not None for said in (self.selection, self.search.selection, named))

    def identity(self) -> dict[str, Any]:
        """Return what decides results: all but the engine, where and how large files are, and a model's place."""
        excluded: dict[str, Any] = {
            "engine": True,
            "federation": {"folder", "max_file_bytes", "max_file_rows", "max_query_seconds"},
            "recommender": {*NO_PART_OF_THE_IDENTITY},
            "client_settings": True,
        }
        identity = self.model_dump(mode="json", exclude=excluded)
        identity["training"]["metric"] = self.metric_name
        if self.client_settings.kind is not None:
            identity["client_settings"] = self.client_settings.identity()
        return identity

    @property
    def metric_name(self) -> str:
        """What makes a model good on test rows."""
        return self.training.metric or (R2.name if self.federation.predicts_quantity else ACCURACY)

    def without_diagnosis(self) -> StudyConfig:
        """Return the configuration of a search that nobody informs: that of the published one."""
        return self.model_copy(update={"search": self.search.model_copy(update={"informed": False})})

    def digest(self) -> str:
        """Return the SHA-256 of the identity, and of what an informed search begins with, in hexadecimal."""
        text = json.dumps(self.identity(), sort_keys=True, separators=(",", ":"))
        knowledge = KNOWLEDGE if self.search.is_informed else ""
        return hashlib.sha256((text + knowledge).encode()).hexdigest()


def planned_trials(config: StudyConfig, levelled: int | None = None) -> tuple[int, int]:
    """Return how many trials a study plans at most, and how many rounds shorter ones lack in all.

    Args:
        config: Of the study.
        levelled: Rounds after which FedAvg has levelled off, for what is planned from there on; None if not known.
    """
    from fedscout.search.confirmation.rate_tuning import num_tuning_trials  # loads every strategy
    from fedscout.search.searchers.racing_search import most_trials
    from fedscout.search.study.levelling import shorter_trainings

    search = config.search
    contestants = search.confirmation_top + (2 if search.has_tuned_reference else 1)
    num_rounds = config.training.num_rounds if levelled is None else levelled
    searched, rounds_less = most_trials(search, num_rounds)
    shorter = [*shorter_trainings(num_rounds)] if config.training.level_off and levelled is None else []
    rounds_less += sum(num_rounds - rounds for rounds in shorter)
    num_trials = len(shorter) + 1 + searched + num_tuning_trials(search) + search.confirmation_seeds * contestants
    return num_trials, rounds_less


def check_searchable(config: StudyConfig) -> None:
    """Refuse what only `fedscout train` reads.

    Raises:
        ConfigurationError: If a strategy is given, which a search chooses itself.
    """
    if config.strategy is not None:
        raise ConfigurationError(
            Fault(
                "strategy",
                "be left out of a search",
                config.strategy,
                "it is read by `fedscout train`, and search.strategies names the kinds to choose from",
            )
        )
