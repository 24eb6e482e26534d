"""Validation of the table of client settings of a study.

A table must fit the federation and must be the only thing that chooses clients' learning rate, batch size and epochs.
Its clients must not hold rows that it was tuned on, as its settings would partly be memorised. A table names these
rows: a share of a data set that the server held, and the keys that determine it. Clients of the same data set hold none
of them if the same keys give the server at least these rows again.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedscout.engine.contracts.client_table import METRICS, SettingsLookup
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, first_line
from fedscout.experiments.config import StudyConfig
from fedscout.experiments.data.dataset import DatasetRequest
from fedscout.experiments.federation_config import FederationConfig
from fedscout.strategies import BUILT_IN_KINDS
from fedscout.strategies.custom import imported
from fedscout.strategies.specification import CLIENT_PARAMETERS

SAME_ROWS = {"folder", "max_file_bytes", "max_file_rows", "min_release"}
"""Keys of a data set that change none of its rows."""


def check_proxy_rows(provenance: Mapping[str, Any], federation: FederationConfig, name: str) -> None:
    """Check that no client may hold rows that a table was tuned on.

    Args:
        provenance: Of the table; accepted if it describes no proxy rows.
        federation: Of the clients.
        name: Of the table, for the message.

    Raises:
        ConfigurationError: With the keys that would fix it.
    """
    proxy, stored = provenance.get("proxy"), (provenance.get("config") or {}).get("federation")
    if not isinstance(proxy, Mapping) or not isinstance(stored, Mapping) or proxy.get("synthetic") is not None:
        return
    if proxy.get("dataset") != federation.dataset:
        return
    if provenance.get("dataset") != federation.dataset:
        raise ConfigurationError.of(
            "clients",
            f"hold no row that {name} was tuned on",
            f"the data set {federation.dataset}, from which its proxy rows are taken",
        )
    study_settings = federation.model_dump(mode="json")
    keys = [key for key in DatasetRequest.model_fields if key not in SAME_ROWS]
    table_settings = {key: stored[key] for key in [*keys, "server_rows", "server_dataset", "seed"] if key in stored}
    differing = [key for key, value in table_settings.items() if study_settings[key] != value]
    if differing:
        required = " ".join(f"federation.{key}={_text(table_settings[key])}" for key in differing)
        actual = " ".join(f"federation.{key}={_text(study_settings[key])}" for key in differing)
        raise ConfigurationError.of(
            "clients",
            f"hold no row that {name} was tuned on",
            actual,
            f"with {required} the server holds these rows",
        )


def _text(value: Any) -> str:
    return "null" if value is None else str(value)


logger = logging.getLogger("fedscout")


def client_table_of(config: StudyConfig, federation: Federation) -> SettingsLookup | None:
    """Return the table that clients receive; None if all clients train with the same settings.

    Raises:
        ConfigurationError: If it can't be read or does not fit this federation.
    """
    settings = config.client_settings
    if settings.kind is None:
        return None
    if federation.task_name != "classification" or federation.num_classes < 2:
        given = f"{federation.task_name} of {federation.num_classes} classes"
        raise ConfigurationError.of("client_settings.kind=table", "be used for classification of two classes", given)
    table, provenance = settings.read()
    classes = provenance.get("num_classes")
    if classes is not None and classes != federation.num_classes:
        raise ConfigurationError.of(
            "client_settings.path",
            f"be a table for {federation.num_classes} classes, as in this federation",
            f"{settings.path}, a table for {classes}",
        )
    folder = "" if settings.metric in METRICS else folder_of_metric(settings.metric, federation.num_classes)
    return SettingsLookup(table, settings.metric, folder, settings.epsilon)


def check_client_settings(config: StudyConfig, federation: Federation, detection: bool = False) -> None:
    """Check that a table is usable before any training, and log warnings about a usable one.

    Args:
        config: The study's configuration.
        federation: The study's federation.
        detection: Whether the detectors query clients about their data.

    Raises:
        ConfigurationError: As `client_table_of`.
    """
    if client_table_of(config, federation) is None:
        return
    path, (_, provenance) = config.client_settings.path, config.client_settings.read()
    check_proxy_rows(provenance, config.federation, str(path))
    warn_of_table(config, str(federation.facts.get("model")))
    if detection:
        logger.warning(
            "detection queries clients for aggregates of their data, which a table of client settings does not need; "
            "fedscout search and train query nothing"
        )


def warn_of_table(config: StudyConfig, model: str) -> None:
    """Warn of differences between the table's tuning and this study.

    Args:
        config: The study's configuration, with a table.
        model: Description of the model that its clients train.
    """
    path, (_, provenance) = config.client_settings.path, config.client_settings.read()
    if differing := _differing_settings(provenance, config, model):
        tuned, actual = (", ".join(f"{name} {pair[side]}" for name, pair in differing.items()) for side in (0, 1))
        logger.warning("%s was tuned for %s; this study has %s", path, tuned, actual)


def _differing_settings(
    provenance: Mapping[str, Any], config: StudyConfig, trained: str
) -> dict[str, tuple[object, object]]:
    """Return the settings that differ, as pairs of the table's and the study's.

    A table tuned with FedAvg may be used with every strategy (docs/client_settings.md), any other only with its own.
    """
    tuned = provenance.get("tuned")
    training = tuned.get("training") if isinstance(tuned, Mapping) else None
    described = {**(training if isinstance(training, Mapping) else {}), **provenance}
    study_values = {
        "dataset": config.federation.dataset,
        "model": trained if "trained_model" in described else config.model.kind,
        **{name: getattr(config.training, name) for name in ("optimizer", "momentum", "weight_decay")},
    }
    described["model"] = described.get("trained_model", described.get("model", config.model.kind))
    pairs = {name: (described.get(name, value), value) for name, value in study_values.items()}
    others: dict[str, tuple[object, object]] = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    kinds = [str(config.strategy["kind"])] if config.strategy else [*(config.search.strategies or BUILT_IN_KINDS)]
    family = described.get("strategy", "fedavg")
    if family != "fedavg" and kinds != [family]:
        others["strategy"] = family, " or ".join(kinds)
    return others


def check_alone(config: StudyConfig) -> None:
    """Check that nothing but the table chooses clients' rates, batches or epochs.

    Raises:
        ConfigurationError: With the settings that do.
    """
    if config.client_settings.kind is None:
        return
    documents = [config.strategy or {}, *config.search.customs]
    names = sorted({name for document in documents for name in CLIENT_PARAMETERS if document.get(name) is not None})
    names += [f"search.client_ranges.{name}" for name, value in config.search.client_ranges if value is not None]
    if names:
        raise ConfigurationError.of(
            "client_settings.kind=table",
            "be the only setting of clients' learning rates, batch sizes and epochs",
            ", ".join(names),
        )


def folder_of_metric(metric: str, num_classes: int) -> str:
    """Return the folder of a user's own metric, after checking it on a client with one row of each class.

    Raises:
        UserError: If it can't be imported, or does not return a finite number.
    """
    function = imported(metric)
    try:
        found = f"returned {(value := float(function(np.ones(num_classes, np.int64), num_classes)))}"
        is_finite = math.isfinite(value)
    except Exception as error:  # user code may raise anything
        found, is_finite = f"raised {type(error).__name__}: {first_line(error)}", False
    if not is_finite:
        must = "be a function of (class counts, rows) that returns a finite number"
        raise ConfigurationError.of("client_settings.metric", must, f"{metric}, which {found}")
    module = metric.partition(":")[0]
    file = getattr(sys.modules[module], "__file__", None)
    return "" if file is None else str(Path(file).resolve().parents[module.count(".")])
