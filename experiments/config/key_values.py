"""The values that a key can have, where they are a few names: for the shell's completion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from fedscout.engine.annotations import alternatives
from fedscout.experiments.config.study_config import StudyConfig


def named_values(key: str) -> tuple[str, ...]:
    """Return the names that a key may have, of a table or of its type; none if it is a number or text."""
    tables = _tables()
    return tuple(tables[key]) if key in tables else tuple(_choices(_annotation(key)))


def takes_text(key: str) -> bool:
    """Whether a key is one of text alone, or of text or nothing."""
    forms = {*alternatives([_annotation(key)])} - {NoneType}
    return forms == {str}


def _tables() -> Mapping[str, Iterable[str]]:
    from fedscout.experiments.federations.datasets.loaders.dataset_table import DATASETS
    from fedscout.experiments.federations.environments.environment_table import ENVIRONMENTS
    from fedscout.experiments.federations.models.model_table import MODELS
    from fedscout.experiments.federations.partitions.partition_table import PARTITIONS
    from fedscout.experiments.federations.scenarios.published_scenarios import SCENARIOS
    from fedscout.strategies import SELECTIONS, STRATEGIES

    return {
        "federation.dataset": [*DATASETS, *ENVIRONMENTS],
        "federation.server_dataset": DATASETS,
        "federation.partition.kind": PARTITIONS,
        "federation.scenario": SCENARIOS,
        "model.kind": MODELS,
        "strategy.kind": STRATEGIES,
        "selection.kind": SELECTIONS,
    }


def _annotation(key: str) -> Any:
    annotation: Any = StudyConfig
    for part in key.split("."):
        is_group = isinstance(annotation, type) and issubclass(annotation, BaseModel)
        field = annotation.model_fields.get(part) if is_group else None
        if field is None:
            return None
        annotation = field.annotation
    return annotation


def _choices(annotation: Any) -> Iterator[str]:
    if annotation is bool:
        yield from ("true", "false")
    elif get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    elif get_origin(annotation) in (Union, UnionType):
        for part in get_args(annotation):
            yield from _choices(part)
