"""Configuration of a study: a YAML file and `dotted.key=value` arguments, validated by pydantic models.

Unknown keys are errors, all faults are reported at once with suggestions for misspelled keys, and the whole
configuration is logged with every trial. `known_keys` lists all keys.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from fedscout.detectors.report import DetectionConfig
from fedscout.engine.config import EngineConfig
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.messages.calls import Session
from fedscout.engine.metrics import ACCURACY, R2, Metric
from fedscout.engine.text import alternatives, booleans_as_words, details, fault_of, shown
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from fedscout.experiments.reinforcement import ENVIRONMENTS
from fedscout.search.client_settings import ClientSettingsConfig
from fedscout.search.config import EXCLUDED_FROM_IDENTITY, KNOWLEDGE, RecommenderConfig, SearchConfig

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class TrainingConfig(LocalTraining):
    """Rounds of federated training, and the local training in each."""

    num_rounds: int = Field(default=30, ge=1, le=1_000_000, description="number of rounds of a trial")
    repetitions: int = Field(
        default=1, ge=1, le=99, description="number of trainings per trial (odd), whose median is the result"
    )
    fraction_train: float = Field(default=1.0, gt=0, le=1, description="fraction of the clients that train in a round")
    scored_clients: int | None = Field(
        default=None, ge=1, description="number of clients, drawn by the seed, that evaluate each model; all by default"
    )
    test_fraction: float = Field(
        default=0.2, gt=0, lt=1, description="fraction of each client's rows held out for testing"
    )
    trial_timeout_seconds: Seconds | None = Field(
        default=None, description="time limit of a trial, after which it fails; none by default"
    )
    round_timeout_seconds: Seconds | None = Field(
        default=None,
        description="on Ray, time limit of a host's part of a round, after which the host is replaced; none by default",
    )
    simulated_deadline_seconds: Seconds | None = Field(
        default=None, description="deadline of a round in simulated time; slower clients are left out; none by default"
    )
    backend: Literal["auto", "loop"] = Field(
        default="auto", description="loop trains clients one by one; auto trains several at once where possible"
    )
    metric: Literal["accuracy", "balanced_accuracy", "macro_f1", "auroc", "r2", "mae"] | None = Field(
        default=None, description="score on the test rows of all clients; accuracy by default, r2 for regression"
    )

    @field_validator("repetitions")
    @classmethod
    def _median_is_of_one_training(cls, repetitions: int) -> int:
        if repetitions % 2 == 0:
            raise ValueError(f"must be odd, so that the median is the result of one training, got {repetitions}")
        return repetitions

    def local(self) -> LocalTraining:
        """Return the local training of the clients."""
        return LocalTraining(**{name: getattr(self, name) for name in LocalTraining.model_fields})

    def session(
        self, seed: int, validation_fraction: float = 0.0, metric: Metric | None = None, worst_clients: bool = False
    ) -> Session:
        """Return the session that all trials share.

        Args:
            seed: Seed of split, initial model and batches.
            validation_fraction: Share of validation rows, taken from training rows.
            metric: Metric measured in addition to accuracy.
            worst_clients: Whether the worst clients' score is recorded for each round.
        """
        return Session(
            seed=seed,
            training=self.local(),
            test_fraction=self.test_fraction,
            validation_fraction=validation_fraction,
            backend=self.backend,
            round_timeout_seconds=self.round_timeout_seconds,
            deadline_seconds=self.simulated_deadline_seconds,
            metric=metric,
            num_scored=self.scored_clients,
            worst_clients=worst_clients,
        )

    @property
    def has_time_limit(self) -> bool:
        """Whether a trial or a round has a timeout."""
        return self.trial_timeout_seconds is not None or self.round_timeout_seconds is not None

    def num_sampled(self, num_clients: int) -> int:
        """Return how many clients train in a round: the nearest integer, at least 1."""
        return min(num_clients, max(1, round(self.fraction_train * num_clients)))


class StudyConfig(BaseModel):
    """Configuration of a study. The defaults are the demo."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    federation: FederationConfig = Field(default_factory=FederationConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    detection: DetectionConfig = Field(default_factory=DetectionConfig)
    strategy: dict[str, Any] | None = Field(
        default=None, description="strategy of `fedscout train`: kind and parameters"
    )
    selection: dict[str, Any] | None = Field(
        default=None,
        description="client selection policy: kind and parameters; the strategy samples clients by default",
    )
    client_settings: ClientSettingsConfig = Field(default_factory=ClientSettingsConfig)
    search: SearchConfig = Field(default_factory=SearchConfig)
    recommender: RecommenderConfig = Field(default_factory=RecommenderConfig)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    seed: int = Field(default=0, ge=0, le=2**31 - 1, description="seed of split, initial model, batches and search")

    @model_validator(mode="before")
    @classmethod
    def _training_of_the_environment(cls, given: Any) -> Any:
        """Use the environment's training defaults for unset keys, as the general defaults are meant for rows."""
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
        """Disable tuning of FedAvg's client rate by default if a table sets the rate of every client."""
        table = given.get("client_settings") if isinstance(given, Mapping) else None
        search = given.get("search", {}) if isinstance(given, Mapping) else None
        if not isinstance(table, Mapping) or table.get("kind") is None or not isinstance(search, Mapping):
            return given
        return {**given, "search": {"tuned_baseline": False, **search}}

    @model_validator(mode="after")
    def _rates_come_from_one_place(self) -> Self:
        if self.client_settings.kind is not None and self.search.tuned_baseline:
            raise ValueError("search.tuned_baseline must be false if client_settings sets the clients' learning rates")
        return self

    @field_validator("training")
    @classmethod
    def _fits_the_task(cls, training: TrainingConfig, info: ValidationInfo) -> TrainingConfig:
        federation = info.data.get("federation")
        if training.is_narrow and federation is not None and federation.dataset in ENVIRONMENTS:
            raise ValueError(f"precision must be float32 for reinforcement learning, got {training.precision}")
        return training

    @property
    def named_strategies(self) -> tuple[str, ...]:
        """The strategy kinds that the configuration names, known or not."""
        trained = () if self.strategy is None else (str(self.strategy.get("kind")),)
        return (*(self.search.strategies or ()), *trained)

    @property
    def chooses_clients(self) -> bool:
        """Whether a selection policy is configured, at least for some trials."""
        strategy_selection = (self.strategy or {}).get("selection")
        return any(policy is not None for policy in (self.selection, self.search.selection, strategy_selection))

    def identity(self) -> dict[str, Any]:
        """Return the part that determines results: without engine, file locations, file limits and model endpoint."""
        excluded: dict[str, Any] = {
            "engine": True,
            "federation": {"folder", "max_file_bytes", "max_file_rows", "max_query_seconds"},
            "recommender": {*EXCLUDED_FROM_IDENTITY},
            "client_settings": True,
        }
        identity = self.model_dump(mode="json", exclude=excluded)
        if self.client_settings.kind is not None:
            identity["client_settings"] = self.client_settings.identity()
        return identity

    @property
    def metric_name(self) -> str:
        """Metric of the test rows."""
        return self.training.metric or (R2.name if self.federation.predicts_quantity else ACCURACY)

    def with_task(self, predicts_quantity: bool) -> StudyConfig:
        """Return the configuration with the task that was found in the data."""
        if not predicts_quantity or self.federation.predicts_quantity:
            return self
        return self.model_copy(update={"federation": self.federation.model_copy(update={"task": "regression"})})

    def without_diagnosis(self) -> StudyConfig:
        """Return the configuration of an uninformed search, as published."""
        return self.model_copy(update={"search": self.search.model_copy(update={"informed": False})})

    def digest(self) -> str:
        """Return the SHA-256, in hexadecimal, of the identity and an informed search's prior knowledge.

        The task is left out, as it is found when the data are read; the data's digest tells tasks apart.
        """
        identity = self.identity()
        del identity["federation"]["task"]
        if identity["training"]["metric"] == ACCURACY:  # the default
            identity["training"]["metric"] = None
        text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
        knowledge = KNOWLEDGE if self.search.is_informed else ""
        return hashlib.sha256((text + knowledge).encode()).hexdigest()


def planned_trials(config: StudyConfig) -> tuple[int, int]:
    """Return the maximum number of trials of a study, and the total number of rounds that shortened trials save."""
    from fedscout.search.confirmation.runs import num_tuning_trials  # loads every strategy
    from fedscout.search.searchers.racing import most_trials

    search = config.search
    num_searched, rounds_less = most_trials(search, config.training.num_rounds)
    num_confirming = search.confirmation_seeds * (search.confirmation_top + 1)
    return 1 + num_searched + num_tuning_trials(search) + num_confirming, rounds_less


def check_searchable(config: StudyConfig) -> None:
    """Check that no setting is given that only `fedscout train` reads.

    Raises:
        ConfigurationError: If a strategy is given, which a search chooses itself.
    """
    if config.strategy is not None:
        raise ConfigurationError.of(
            "strategy",
            "be left out of a search",
            config.strategy,
            "`fedscout train` reads it; search.strategies names the kinds to choose from",
        )


def known_keys(model: type[BaseModel] = StudyConfig, prefix: str = "") -> dict[str, FieldInfo]:
    """Return every key by its dotted name, in the order of the models."""
    keys: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys |= known_keys(field.annotation, f"{prefix}{name}.")
        else:
            keys[prefix + name] = field
    return keys


def fault_text(detail: ErrorDetails) -> Fault:
    """Return a validation error as key, condition and value."""
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        return Fault(key, problem="is not a known key", hint=_suggestion(key))
    if detail["type"] == "invalid_key":
        return Fault(key.removesuffix(".[key]"), problem="is not a known key", hint="a key must be a string")
    is_unquoted = detail["type"] == "string_type" and isinstance(detail["input"], bool | int | float)
    hint = '; quote text that YAML reads as a number or boolean, such as "1" or "yes"'
    return fault_of(key, detail, hint if is_unquoted else "")


OPTIONS = ("json", "out", "parallel", "report", "verbose")
"""Options of commands that may be typed like a key."""


def _suggestion(key: str) -> str:
    """Return the option of that name, or similar keys of the same group, or else of another, or the group's keys."""
    if key in OPTIONS:
        return f"; did you mean --{key}?"
    if any(part.isdecimal() for part in key.split(".")):  # in a list, whose entries have no known keys
        return ""
    keys = known_keys()
    group, _, leaf = key.rpartition(".")
    inside = [name for name in keys if not group or name.startswith(f"{group}.")]
    members = list(dict.fromkeys(".".join(name.split(".")[: key.count(".") + 1]) for name in inside))
    if near := _close(leaf, members) or _close(leaf, list(keys)):
        return f"; did you mean {' or '.join(near)}?"
    return f"; allowed keys are {', '.join(members)}"


def _close(leaf: str, names: Sequence[str]) -> list[str]:
    """Return the names whose last part equals `leaf`, or else resembles it."""
    lasts = list(dict.fromkeys(name.rpartition(".")[2] for name in names))
    near = [leaf] if leaf in lasts else difflib.get_close_matches(leaf, lasts, n=3, cutoff=0.6)
    return [name for last in near for name in names if name.rpartition(".")[2] == last]


_QUOTED_OR_NULL = re.compile(r"""\s*(null|['"].*)?""", re.DOTALL)


def takes_text(key: str) -> bool:
    """Return whether a key takes only text, or text and None."""
    field = known_keys().get(key)
    return field is not None and {*alternatives([field.annotation])} - {NoneType} == {str}


YAML_SUFFIXES = (".yaml", ".yml")
LARGEST_FILE = 1_000_000
DEEPEST = 20
_TOO_DEEP = f"{{name}} must not be nested in more than {DEEPEST} levels"
_OTHER_NUMBER = re.compile(
    r"[-+]?(0\d[\d_]*|\d[\d_]*_[\d_]*(\.[\d_]*)?|\d+(:[0-5]?\d)+(\.\d*)?|0[xob][\da-f_]+)", re.IGNORECASE
)
"""Numbers of YAML 1.1 that JSON does not have: 010 is 8 there, 1:30 is 90, 1_0 is 10."""
_HALF_A_CHARACTER = re.compile("[\ud800-\udfff]")


def load_config(arguments: Sequence[str] = (), file: Path | None = None) -> StudyConfig:
    """Return the configuration.

    Args:
        arguments: `dotted.key=value` with YAML values, or paths of YAML files; later ones take precedence.
        file: A YAML file that all arguments override.

    Raises:
        ConfigurationError: With every fault.
    """
    return config_of(*_merged(arguments, file))


def config_of(settings: Mapping[Any, Any], faults: Sequence[str] = ()) -> StudyConfig:
    """Return the configuration for settings by section.

    Args:
        settings: Such as `{"training": {"num_rounds": 10}}`.
        faults: Faults of settings that could not be read.

    Raises:
        ConfigurationError: With every fault.
    """
    all_faults = [*faults]
    try:
        config = StudyConfig.model_validate(booleans_as_words(settings, StudyConfig))
    except ValidationError as error:
        all_faults += _fault_texts(details(error))
    if all_faults:
        raise ConfigurationError(all_faults)
    return config


def _fault_texts(faults: Sequence[ErrorDetails]) -> Iterator[str]:
    """Yield one line per fault, merging those of list items with the same fault."""
    grouped: dict[tuple[Any, ...], list[ErrorDetails]] = {}
    for fault in faults:
        location = fault["loc"]
        item = next((depth for depth, part in enumerate(location) if isinstance(part, int)), len(location))
        grouped.setdefault((location[:item], location[item + 1 :], fault["type"]), []).append(fault)
    for group in grouped.values():
        more = f", and {len(group) - 1} more in that list" if len(group) > 1 else ""
        text = fault_text(group[0])
        yield text + more if more else text


def given_settings(arguments: Sequence[str] = (), file: Path | None = None) -> dict[str, Any]:
    """Return the settings of arguments and file, merged as in `load_config`, without defaults.

    Raises:
        ConfigurationError: If an argument or a file can't be read.
    """
    merged, faults = _merged(arguments, file)
    if faults:
        raise ConfigurationError(faults)
    return merged


def _merged(arguments: Sequence[str], file: Path | None) -> tuple[dict[Any, Any], list[str]]:
    """Return the merged settings of all readable layers, and the faults of the others."""
    merged: dict[Any, Any] = {}
    faults: list[str] = []
    for name, read in _layers(arguments, file):
        try:
            layer = read()
            _refuse_what_no_key_takes(name, layer)
            _refuse_values_for_groups(layer)
            merged = merged_over(layer, merged)
        except ConfigurationError as error:
            faults += error.faults
        except RecursionError:
            faults.append(_TOO_DEEP.format(name=name))
    return merged, faults


def merged_over(layer: Mapping[Any, Any], below: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a layer merged over another: groups are merged, all other values replaced."""
    both = {
        key: merged_over(layer[key], below[key])
        for key in layer.keys() & below.keys()
        if isinstance(layer[key], Mapping) and isinstance(below[key], Mapping)
    }
    return {**below, **layer, **both}


def flattened(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by their dotted keys."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        group = isinstance(value, Mapping) and value
        leaves |= flattened(value, f"{prefix}{key}.") if group else {f"{prefix}{key}": value}
    return leaves


def _refuse_what_no_key_takes(name: str, layer: Any, depth: int = 0) -> None:
    """Check for deep nesting, bytes and lone surrogates, which YAML allows but no key accepts and no file can store.

    Raises:
        ConfigurationError: With the first fault.
    """
    if isinstance(layer, bytes) or (isinstance(layer, str) and _HALF_A_CHARACTER.search(layer)):
        raise ConfigurationError.of(name, "contain only text and numbers", shown(layer))
    if isinstance(layer, dict | list):
        if depth == DEEPEST:
            raise ConfigurationError(_TOO_DEEP.format(name=name))
        for part in (*layer, *layer.values()) if isinstance(layer, dict) else layer:
            _refuse_what_no_key_takes(name, part, depth + 1)


def _refuse_values_for_groups(layer: Mapping[Any, Any]) -> None:
    """Check that no group has a value (`federation=wine`), which `federation.seed=1` would silently replace."""
    groups = {key.partition(".")[0] for key in known_keys() if "." in key}
    faults = []
    for group in sorted(groups & set(layer)):
        if not isinstance(layer[group], dict):
            keys = [key for key in known_keys() if key.startswith(f"{group}.")]
            faults.append(Fault(group, f"be a group of keys, such as {keys[0]}", shown(layer[group])))
    if faults:
        raise ConfigurationError(faults)


def _layers(arguments: Sequence[str], file: Path | None) -> Iterator[tuple[str, Callable[[], dict[Any, Any]]]]:
    """Yield name and reader of each layer, so that an unreadable one does not hide the faults of the others."""
    if file is not None:
        yield str(file), partial(_read_yaml, file)
    for argument in arguments:
        if "=" not in argument and argument.endswith(YAML_SUFFIXES):
            yield argument, partial(_read_yaml, Path(argument))
        else:
            yield argument.partition("=")[0], partial(_read_argument, argument)


def _read_argument(argument: str) -> dict[Any, Any]:
    from omegaconf import OmegaConf

    key, equals, text = argument.partition("=")
    if not equals or not all(part.strip() for part in key.split(".")):
        raise ConfigurationError.of("an argument", "be dotted.key=value or a YAML file", shown(argument))
    fault_parts = (key, "have a valid YAML value", shown(argument))
    if not takes_text(key):
        _refuse_other_numbers(key, text)
    elif not _QUOTED_OR_NULL.fullmatch(text):
        argument = f"{key}={json.dumps(text, ensure_ascii=False)}"  # the column 1, yes, or a sentence with a colon
    return dict(_plain(lambda: OmegaConf.from_dotlist([argument]), *fault_parts))


def setting_text(value: Any) -> str:
    """Return a value as an argument has it after `key=`; strings are unquoted where YAML reads them unchanged."""
    import yaml

    if not isinstance(value, str):
        return json.dumps(value)
    with suppress(yaml.YAMLError):
        if value and yaml.safe_load(value) == value:
            return value
    return yaml.safe_dump(value, default_style='"', width=sys.maxsize).strip()


def _read_yaml(file: Path) -> dict[Any, Any]:
    from omegaconf import OmegaConf

    try:
        size = file.stat().st_size if file.is_file() else None
    except OSError as error:
        raise ConfigurationError.of("the configuration file", "be readable", f"{file}: {error.strerror}") from error
    if size is None:
        raise ConfigurationError.of("the configuration file", "exist", file)
    if size > LARGEST_FILE:
        raise ConfigurationError.of("the configuration file", f"have at most {LARGEST_FILE} bytes", f"{size} in {file}")
    with suppress(UnicodeDecodeError):  # which is reported below
        _refuse_other_numbers(str(file), file.read_text("utf-8"))
    loaded = _plain(lambda: OmegaConf.load(file), file, "be valid YAML")
    if not isinstance(loaded, dict):
        raise ConfigurationError.of(file, "hold keys and values, such as `seed: 1`")
    return loaded


def _refuse_other_numbers(name: str, text: str) -> None:
    """Check for numbers that YAML 1.1 parses differently from JSON.

    Raises:
        ConfigurationError: With the first fault.
    """
    import yaml

    with suppress(yaml.YAMLError):  # which is reported where the text is read
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            if isinstance(token, yaml.ScalarToken) and token.plain and _OTHER_NUMBER.fullmatch(token.value):
                raise ConfigurationError.of(
                    name,
                    "hold numbers in JSON notation",
                    f"{token.value}, which YAML reads as another number",
                    f"""quote text: '"{token.value}"'""",
                )


def _plain(read: Callable[[], Any], subject: object, must: str, given: str = "") -> Any:
    """Return what OmegaConf reads as dictionaries and lists, with references such as `${seed}` unresolved."""
    from omegaconf import OmegaConf

    try:
        return OmegaConf.to_container(read(), resolve=False)
    except RecursionError:
        raise
    except Exception as error:  # YAML's constructors raise anything: KeyError for `!!bool x`, IndexError for `!!int ""`
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConfigurationError.of(subject, must, f"{given}: {reason}" if given else reason) from error
