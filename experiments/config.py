"""The configuration of a study: a YAML file and `dotted.key=value` arguments over validated models.

Unknown keys are errors, all faults are reported at once, and the whole configuration is logged with every trial.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from detectors.detection_config import DetectionConfig
from engine.errors import ConfigurationError
from engine.training_config import LocalTraining
from experiments.engine_config import EngineConfig
from experiments.federation_config import FederationConfig, ModelConfig
from search.search_config import SearchConfig

YAML_SUFFIXES = (".yaml", ".yml")


class TrainingConfig(LocalTraining):
    """Rounds of federated training, and the local training in each."""

    num_rounds: int = Field(default=30, ge=1, le=1_000_000, description="rounds a trial")
    fraction_train: float = Field(default=1.0, gt=0, le=1, description="share of the clients that train in a round")
    test_fraction: float = Field(default=0.2, gt=0, lt=1, description="share of each client's rows kept for testing")

    def local(self) -> LocalTraining:
        """Return the clients' part."""
        return LocalTraining(**{name: getattr(self, name) for name in LocalTraining.model_fields})

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
    search: SearchConfig = Field(default_factory=SearchConfig)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    seed: int = Field(default=0, ge=0, le=2**31 - 1, description="of split, initial model, batches and search")

    def identity(self) -> dict[str, Any]:
        """Return what decides results: all but the engine and the place of the files."""
        return self.model_dump(mode="json", exclude={"engine": True, "federation": {"folder"}})

    def digest(self) -> str:
        """Return the SHA-256 of the identity, in hexadecimal."""
        text = json.dumps(self.identity(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def load_config(arguments: Sequence[str] = (), file: Path | None = None) -> StudyConfig:
    """Read the configuration.

    Args:
        arguments: `dotted.key=value`, later ones win; YAML values. A path of a YAML file is read in its place.
        file: A YAML file under all arguments.

    Raises:
        ConfigurationError: With every fault that was found.
    """
    from omegaconf import OmegaConf

    merged: Any = OmegaConf.create({})
    for layer in _layers(arguments, file):
        merged = OmegaConf.merge(merged, layer)
    document = OmegaConf.to_container(merged, resolve=False)
    try:
        return StudyConfig.model_validate(document)
    except ValidationError as error:
        raise ConfigurationError([fault_text(detail) for detail in error.errors()]) from error


def _layers(arguments: Sequence[str], file: Path | None) -> Iterator[Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    if file is not None:
        yield _read_yaml(file)
    for argument in arguments:
        key, equals, _ = argument.partition("=")
        if not equals and argument.endswith(YAML_SUFFIXES):
            yield _read_yaml(Path(argument))
            continue
        if not equals or not key.strip():
            raise ConfigurationError(f"an argument must be dotted.key=value or a YAML file, got {argument!r}")
        try:
            yield OmegaConf.from_dotlist([argument])
        except (OmegaConfBaseException, YAMLError) as error:
            raise ConfigurationError(f"{key} must have a YAML value, got {argument!r}: {_first_line(error)}") from error


def _read_yaml(file: Path) -> Any:
    from omegaconf import OmegaConf
    from yaml import YAMLError

    if not file.is_file():
        raise ConfigurationError(f"the configuration file must exist, got {file}")
    try:
        loaded = OmegaConf.load(file)
    except (YAMLError, UnicodeDecodeError, OSError) as error:
        raise ConfigurationError(f"{file} must be YAML: {_first_line(error)}") from error
    if not OmegaConf.is_dict(loaded):
        raise ConfigurationError(f"{file} must hold keys and values, such as `seed: 1`")
    return loaded


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


@dataclass(frozen=True)
class Key:
    """One key of the configuration.

    Attributes:
        name: Dotted.
        default: If it is not given.
        description: What it means.
    """

    name: str
    default: Any
    description: str


def known_keys(model: type[BaseModel] = StudyConfig, prefix: str = "") -> dict[str, Key]:
    """Return every key by its dotted name, in the order of the models."""
    keys: dict[str, Key] = {}
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            keys.update(known_keys(annotation, f"{prefix}{name}."))
        else:
            default = field.get_default(call_default_factory=True)
            keys[prefix + name] = Key(prefix + name, default, field.description or "")
    return keys


def fault_text(detail: ErrorDetails) -> str:
    """Return one fault as key, condition and value."""
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        return f"{key} is not a known key{_suggestion(key)}"
    condition = detail["msg"].removeprefix("Input should ").removeprefix("Value error, ")
    given = detail["input"]
    if condition.startswith("must"):
        return f"{key} {condition}"
    shown = "a group of keys" if isinstance(given, Mapping) else repr(given)
    return f"{key} must {condition}, got {shown}"


def _suggestion(key: str) -> str:
    keys = known_keys()
    near = difflib.get_close_matches(key, keys, n=3, cutoff=0.6)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    group = key.rpartition(".")[0]
    members = [name for name in keys if name.rpartition(".")[0] == group]
    allowed = members or sorted({name.partition(".")[0] for name in keys})
    return f"; allowed are {', '.join(allowed)}"
