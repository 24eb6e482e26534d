"""The table of client settings of a study: whether it is one for this federation, and what is not chosen beside it.

Whether clients may hold rows that a table of client settings was tuned on: then what it gives is partly remembered.

A table says which rows those were: a share of a data set that the server held, by the keys that decide it. Clients of
the same data set hold none of them where the same keys give the server at least these rows again.
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
from fedscout.engine.errors import ConfigurationError, Fault, first_line
from fedscout.experiments.config import StudyConfig
from fedscout.experiments.data.dataset import DatasetRequest
from fedscout.experiments.federation_config import FederationConfig
from fedscout.strategies import BUILT_IN_KINDS
from fedscout.strategies.arguments import imported
from fedscout.strategies.specification import CLIENT_PARAMETERS

SAME_ROWS = {"folder", "max_file_bytes", "max_file_rows", "min_release"}
"""Keys of a data set that change none of its rows."""


def check_proxy_rows(provenance: Mapping[str, Any], federation: FederationConfig, name: str) -> None:
    """Refuse clients that may hold rows that a table was tuned on.

    Args:
        provenance: Of the table; one that says nothing of proxy rows is taken as it is.
        federation: Of the clients.
        name: Of the table, for the message.

    Raises:
        ConfigurationError: With the keys that would do.
    """
    proxy, stored = provenance.get("proxy"), (provenance.get("config") or {}).get("federation")
    if not isinstance(proxy, Mapping) or not isinstance(stored, Mapping) or proxy.get("synthetic") is not None:
        return
    if proxy.get("dataset") != federation.dataset:
        return
    if provenance.get("dataset") != federation.dataset:
        raise ConfigurationError(
            Fault(
                "clients",
                f"hold no row that {name} was tuned on",
                f"the data set {federation.dataset} that its proxy rows are of",
            )
        )
    given = federation.model_dump(mode="json")
    keys = [key for key in DatasetRequest.model_fields if key not in SAME_ROWS]
    wanted = {key: stored[key] for key in [*keys, "server_rows", "server_dataset", "seed"] if key in stored}
    differing = [key for key, value in wanted.items() if given[key] != value]
    if differing:
        must = " ".join(f"federation.{key}={_text(wanted[key])}" for key in differing)
        got = " ".join(f"federation.{key}={_text(given[key])}" for key in differing)
        raise ConfigurationError(
            Fault(
                "clients",
                (f"hold no row that {name} was tuned on, which takes {must}, by which the server holds these rows"),
                got,
            )
        )


def _text(value: Any) -> str:
    return "null" if value is None else str(value)


logger = logging.getLogger("fedscout")


def client_table_of(config: StudyConfig, federation: Federation) -> SettingsLookup | None:
    """Return the table that clients are sent; None where all train alike.

    Raises:
        ConfigurationError: If it can't be read, is none for this federation, or something else chooses the same.
    """
    settings = config.client_settings
    if settings.kind is None:
        return None
    _check_clients(federation)
    table, provenance = settings.read()
    classes = provenance.get("num_classes")
    if classes is not None and classes != federation.num_classes:
        raise ConfigurationError(
            Fault(
                "client_settings.path",
                f"be a table for {federation.num_classes} classes, as this federation has",
                f"{settings.path} for {classes}",
            )
        )
    folder = "" if settings.metric in METRICS else folder_of_metric(settings.metric, federation.num_classes)
    return SettingsLookup(table, settings.metric, folder, settings.epsilon)


def check_client_settings(config: StudyConfig, federation: Federation, detection: bool = False) -> None:
    """Refuse a table that can't serve, before anything trains, and say what is worth knowing of one that can.

    Args:
        config: Of the study.
        federation: Its.
        detection: Whether detectors ask clients of their data.

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
            "detectors ask clients for aggregates of their data, so with them something goes back that a table of "
            "client settings keeps at home; fedscout search and train ask nothing"
        )


def warn_of_table(config: StudyConfig, model: str) -> None:
    """Say in a line each what a table was tuned for and this study has something else, and batches beyond its grid.

    Args:
        config: Of the study, with a table.
        model: That its clients train, in words.
    """
    path, (table, provenance) = config.client_settings.path, config.client_settings.read()
    if others := _others(provenance, config, model):
        tuned, here = (", ".join(f"{name} {pair[side]}" for name, pair in others.items()) for side in (0, 1))
        logger.warning("%s was tuned for %s; this study has %s", path, tuned, here)
    rows = max(cell.quantity for cell in table.cells)
    if (batch := max(cell.batch_size for cell in table.cells)) > rows:
        logger.warning(
            "%s has batches of up to %s rows, and cells of at most %s: there a client makes one step of all its rows",
            *(path, f"{batch:,}", f"{rows:,}"),
        )


def _others(provenance: Mapping[str, Any], config: StudyConfig, trained: str) -> dict[str, tuple[object, object]]:
    """Return the pairs that differ.

    A table of FedAvg's serves every strategy (docs/client_settings.md), one of another that one alone.
    """
    tuned = provenance.get("tuned")
    training = tuned.get("training") if isinstance(tuned, Mapping) else None
    told = {**(training if isinstance(training, Mapping) else {}), **provenance}
    if "trained_model" in told:
        model = {"model": (told["trained_model"], trained)}
    else:
        model = {"model": (told.get("model", config.model.kind), config.model.kind)}
    dataset = {"dataset": (told.get("dataset", config.federation.dataset), config.federation.dataset)}
    given = {name: getattr(config.training, name) for name in ("optimizer", "momentum", "weight_decay")}
    pairs = {**dataset, **model, **{name: (told.get(name, value), value) for name, value in given.items()}}
    others = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    kinds = [str(config.strategy["kind"])] if config.strategy else [*(config.search.strategies or BUILT_IN_KINDS)]
    family = told.get("strategy", "fedavg")
    if family != "fedavg" and kinds != [family]:
        others["strategy"] = family, " or ".join(kinds)
    return others


def check_alone(config: StudyConfig) -> None:
    """Refuse whatever else chooses clients' rates, batches or epochs.

    Raises:
        ConfigurationError: With what it is.
    """
    if config.client_settings.kind is None:
        return
    documents = [config.strategy or {}, *config.search.customs]
    told = sorted({name for document in documents for name in CLIENT_PARAMETERS if document.get(name) is not None})
    told += [f"search.client_ranges.{name}" for name, value in config.search.client_ranges if value is not None]
    if told:
        raise ConfigurationError(
            Fault(
                "client_settings.kind=table",
                "be the only one that chooses clients' rates, batches and epochs",
                ", ".join(told),
            )
        )


def _check_clients(federation: Federation) -> None:
    """Refuse clients that a table says nothing of."""
    if federation.task is not None or federation.targets is not None:
        what = "clients that play" if federation.task is not None else "a quantity to predict"
        raise ConfigurationError(
            Fault("client_settings.kind=table", "be used where there are classes", f"a federation with {what}")
        )
    if federation.num_classes < 2:
        raise ConfigurationError(
            Fault("client_settings.kind=table", "be used where there are at least two classes", federation.num_classes)
        )


def folder_of_metric(metric: str, num_classes: int) -> str:
    """Return where a user's own metric lies, once it has answered for a client with a row of each class.

    Raises:
        UserError: If it can't be imported, or gives no number.
    """
    found = imported(metric)
    must = "be a function of (class counts, rows) that gives a number"
    try:
        answer = float(found(np.ones(num_classes, np.int64), num_classes))
    except Exception as error:  # user code may raise anything
        raise ConfigurationError(
            Fault("client_settings.metric", must, f"{metric}, with {type(error).__name__}: {first_line(error)}")
        ) from error
    if not math.isfinite(answer):
        raise ConfigurationError(Fault("client_settings.metric", must, f"{metric}, with {answer}"))
    module = metric.partition(":")[0]
    file = getattr(sys.modules[module], "__file__", None)
    return "" if file is None else str(Path(file).resolve().parents[module.count(".")])
