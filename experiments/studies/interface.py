"""The Python interface: federations from files or in-memory data, studies, trainings, and notebook views.

Settings are those of the configuration (docs/configuration.md), by section: `training={"num_rounds": 10}`.

In a notebook, federations, trainings and studies are shown as small tables. Progress is a line of text that IPython's
`display` updates in place, at most four times a second; outside a notebook nothing is shown. IPython is not a
dependency: if it has not been imported, there is no notebook.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedscout.detectors import HeterogeneityReport
from fedscout.engine.data.federation import Federation as BuiltFederation
from fedscout.engine.errors import DataError, Fault
from fedscout.engine.runtime.ray import prepare_environment
from fedscout.engine.text import html_of
from fedscout.engine.trials.log import read_trials
from fedscout.engine.user_code import user_folders
from fedscout.experiments.config import StudyConfig, config_of
from fedscout.experiments.data.columns import are_quantities
from fedscout.experiments.data.dataset import Dataset, DatasetRequest
from fedscout.experiments.data.own import dataset_from_own_table, dataset_of_rows
from fedscout.experiments.data.table_files import read_frame
from fedscout.experiments.data.tables import quantity_target
from fedscout.experiments.description import Description, describe_federation, holdings_of
from fedscout.experiments.federation import build_federation, data_digest
from fedscout.experiments.federation_config import GIVEN
from fedscout.experiments.studies import workflow
from fedscout.experiments.studies.result import rounds_of
from fedscout.experiments.studies.run_folder import default_folder
from fedscout.experiments.studies.workflow import SILENT, STAGES, Display, Stage
from fedscout.search.confirmation.confirmation import Confirmation
from fedscout.search.ledger import StudyEvents

if TYPE_CHECKING:
    import datasets


MOST_TRIALS = 10
SECONDS_BETWEEN = 0.25


def scores(trial: Mapping[Any, Any]) -> Sequence[float]:
    """Return the score of a logged trial after each round: its metric if it has one, else accuracy."""
    measured = trial.get("round_metric")
    return tuple(trial["round_accuracy"] if measured is None else measured)


@contextmanager
def notebook_progress() -> Iterator[Display]:
    """Yield callbacks that show a study's progress in a notebook; silent ones elsewhere."""
    if not in_notebook():
        yield SILENT
        return
    from IPython.display import HTML, display

    line = display("", display_id=True)  # type: ignore[no-untyped-call]
    stage, num_finished, num_rounds, shown = "", 0, 0, 0.0

    def show(text: str, at_once: bool = False) -> None:
        nonlocal shown
        if at_once or time.monotonic() - shown > SECONDS_BETWEEN:
            shown = time.monotonic()
            line.update(HTML(html_of(text) if text else ""))  # type: ignore[no-untyped-call]

    def begin(new_stage: Stage) -> None:
        nonlocal stage
        stage = STAGES[new_stage]
        show(f"{stage} …", at_once=True)

    def progress(finished: int, rounds: int) -> None:
        nonlocal num_finished, num_rounds
        num_finished, num_rounds = num_finished + finished, rounds
        show(f"{stage}: {num_finished} trials finished, {num_rounds} rounds of running trials")

    events = StudyEvents(lambda *_: progress(1, num_rounds), lambda rounds: progress(0, sum(rounds.values())))
    try:
        yield Display(stage=begin, trials=events)
    finally:
        show("", at_once=True)


def in_notebook() -> bool:
    """Whether the code runs in a kernel that displays HTML."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")


Section = Mapping[str, Any]
ClientArrays = tuple[npt.ArrayLike, npt.ArrayLike]
"""Features, shape `(num_rows, *feature_shape)`, and labels, shape `(num_rows,)`, of one client."""

KIND_OF_ROWS = {2: "table", 4: "image"}
"""By the number of axes of the features; images are `(num_rows, channels, height, width)`."""


class Federation:
    """Clients with their data, and the model that they train.

    Args:
        data: A name (`"digits"`, a path, `"hf:owner/name"`); or a `pandas.DataFrame` or a `datasets.Dataset`, one row
            per sample, whose column `label` is predicted; or features and labels of each client, which are used
            unchanged.
        model: The section `model`: `{"kind": "mlp", "hidden": [64]}`.
        settings: The section `federation`: `num_clients=20`, `partition={"kind": "dirichlet", "alpha": 0.1}`,
            `label="outcome"`, `client_column="hospital"`, …

    Raises:
        ConfigurationError: If a setting is wrong.
        DataError: If the data can't be read, or can't be partitioned as configured.
    """

    def __init__(
        self,
        data: str | os.PathLike[str] | pd.DataFrame | datasets.Dataset | Sequence[ClientArrays] = "digits",
        *,
        model: Section | None = None,
        **settings: Any,
    ) -> None:
        prepare_environment(verbose=False)
        user_folders()
        dataset = None
        if isinstance(data, str | os.PathLike):
            settings["dataset"] = os.fspath(data)
        else:
            settings["dataset"] = GIVEN
            if not isinstance(data, pd.DataFrame) and not _is_hugging_face(data):
                settings.setdefault("partition", {"kind": "natural"})
        self._sections = {"federation": settings, "model": dict(model or {})}
        config = self._config()
        if not isinstance(data, str | os.PathLike):
            dataset = _dataset_from(data, config.federation)
        self._built = build_federation(config.federation, config.model, dataset=dataset)

    def _repr_html_(self) -> str:
        clients = self.clients.fillna({"name": ""}).reset_index(allow_duplicates=True)
        return html_of(repr(self)[1:-1], clients)

    def __repr__(self) -> str:
        built = self._built
        content = f"predicts {built.target_name}" if built.target_name else f"{built.num_classes} classes"
        return f"<Federation {built.name}: {len(built.labels)} rows, {content}>"

    @property
    def num_clients(self) -> int:
        """Number of clients, including those that join after the training."""
        return self._built.num_clients

    @property
    def client_rows(self) -> tuple[int, ...]:
        """Number of rows of each client."""
        return tuple(self._built.partition.sizes.tolist())

    @property
    def clients(self) -> pd.DataFrame:
        """One row per client, indexed by its number: name if any, number of rows, and rows of each class."""
        built = self._built
        names = [str(name) for name in built.facts.get("client_names", ())]
        named = [names[client] if client < len(names) else None for client in range(built.num_clients)]
        clients = pd.DataFrame({"name": named, "rows": self.client_rows})
        clients.index.name = "client"
        if built.task is not None:  # clients that play have no rows of classes
            return clients
        counts = holdings_of(built, max_columns=1, seed=0).label_counts
        classes = built.class_names or tuple(map(str, range(counts.shape[1])))
        return pd.concat([clients, pd.DataFrame(counts, columns=list(classes), index=clients.index)], axis="columns")

    def describe(self, **sections: Any) -> Description:
        """Return a description of the federation and its heterogeneity, computed on all rows centrally.

        Args:
            sections: `detection`, `seed`.
        """
        config = self._config(**sections)
        return describe_federation(self._built, config.detection, config.seed, config.training.test_fraction)

    def detect(self, **sections: Any) -> HeterogeneityReport:
        """Detect how the clients differ: label skew, feature skew, outliers.

        Args:
            sections: `detection`, `training`, `engine`, `seed`.

        Raises:
            UserError: If a setting is wrong.
        """
        config = self._config(**sections)
        with notebook_progress() as display:
            return workflow.run_detection(config, display, federation=self._built_for(config))[1]

    def _config(self, **sections: Any) -> StudyConfig:
        fixed = [name for name in self._sections if name in sections]
        faults = [
            Fault(name, "be left out, as it is fixed when the Federation is created", repr(sections[name]))
            for name in fixed
        ]
        return config_of({**sections, **self._sections}, faults)

    def _built_for(self, config: StudyConfig) -> BuiltFederation:
        release = replace(self._built.release, privacy=config.detection.privacy)
        return replace(self._built, release=release)

    def _folder(self, config: StudyConfig) -> Path:
        folder = default_folder(config)
        is_in_memory = config.federation.dataset == GIVEN
        return folder.with_name(f"{folder.name}-{data_digest(self._built)[:8]}") if is_in_memory else folder


@dataclass(frozen=True)
class Study:
    """A finished study.

    Attributes:
        folder: Contains its log and its result.
        report: The heterogeneity report; None without detection.
        confirmation: The comparison of the best with FedAvg on fresh seeds, with its interval; None if not requested.
        document: The whole result, as in `result.json`.
    """

    folder: Path
    report: HeterogeneityReport | None
    confirmation: Confirmation | None
    document: Mapping[str, Any]

    @property
    def best(self) -> Mapping[str, Any] | None:
        """The full training with the largest fitness: `strategy`, `parameters`, …; None if all failed."""
        return cast(Mapping[str, Any] | None, self.document["best"])

    @cached_property
    def trials(self) -> pd.DataFrame:
        """The log, one row per trial (docs/log.md)."""
        return read_trials(self.folder)

    @property
    def curves(self) -> pd.DataFrame:
        """The score after each round, one column per trial number; NaN beyond the end of shorter trials."""
        columns = {
            trial["trial"]: pd.Series(np.asarray(scores(trial), dtype=np.float64))
            for trial in self.trials.to_dict("records")
        }
        curves = pd.DataFrame(columns)
        curves.index = pd.RangeIndex(1, len(curves) + 1, name="round")
        return curves

    @property
    def seeds(self) -> pd.DataFrame:
        """The confirmation, one row per fresh seed and one column per candidate; empty without one."""
        if self.confirmation is None:
            return pd.DataFrame()
        confirmation = self.confirmation
        columns = {
            f"{candidate.role}: {candidate.name}": pd.Series(candidate.scores(confirmation.view))
            for candidate in confirmation.candidates
        }
        return pd.DataFrame(columns).set_axis(pd.Index(confirmation.seeds, name="seed"))

    def _repr_html_(self) -> str:
        found, shown = self.confirmation, ["trial", "phase", "strategy", "parameters", "fitness"]
        searched = self.trials[self.trials["phase"].isin(["baseline", "search"])]
        best = searched.sort_values("fitness", ascending=False).head(MOST_TRIALS)
        verdict = [] if found is None else [f"Use {found.advised}.", found.sentence]
        return html_of(*verdict, best[shown], f"The best {len(best)} of {len(searched)} trials; `trials` lists all.")


@dataclass(frozen=True)
class TrainedStrategy:
    """A strategy that was trained once.

    Attributes:
        folder: Contains its log.
        trial: `strategy`, `parameters`, `status`, `error`, `fitness`, …
        rounds: Per round `accuracy` (not for regression) and `loss` on test rows, weighted over clients, and
            `train_loss`; `metric` if another is configured; `global_accuracy` and `global_metric` for personalised
            models, `new_client_accuracy` and `new_client_metric` if some clients never train.
    """

    folder: Path
    trial: Mapping[str, Any]
    rounds: pd.DataFrame

    def _repr_html_(self) -> str:
        summary = self.trial
        outcome = f"{summary['fitness']:.4f}" if summary["status"] == "completed" else f"failed: {summary['error']}"
        parameters = ", ".join(f"{name}={value}" for name, value in summary["parameters"].items())
        return html_of(f"{summary['strategy']}({parameters}): {outcome}", self.rounds.reset_index())


def study(
    federation: Federation, *, detection_first: bool = True, out: str | Path | None = None, **sections: Any
) -> Study:
    """Detect, search and confirm, as `fedscout run`; the same call resumes an interrupted study.

    Args:
        federation: The clients.
        detection_first: Whether to run the detectors.
        out: Folder of the study; None chooses one below `runs` by the configuration and the data.
        sections: `training`, `selection`, `detection`, `search`, `recommender`, `engine`, `seed`.

    Raises:
        UserError: If the request can't be fulfilled.
    """
    config = federation._config(**sections)
    config = config if detection_first else config.without_diagnosis()
    folder = Path(out) if out is not None else federation._folder(config)
    with notebook_progress() as display:
        finished = workflow.run_workflow(
            config,
            folder,
            display,
            detection=detection_first,
            search_path=user_folders(),
            federation=federation._built_for(config),
        )
    return Study(finished.folder, finished.report, finished.outcome.confirmation, finished.document)


def train(
    federation: Federation, strategy: str | Section = "fedavg", *, out: str | Path | None = None, **sections: Any
) -> TrainedStrategy:
    """Train one strategy and log it as a trial, as `fedscout train`.

    Args:
        federation: The clients.
        strategy: Its kind, or kind and parameters: `{"kind": "fedadam", "eta": 0.1}`.
        out: Folder of the log; None chooses one below `runs` by the configuration and the data.
        sections: `training`, `selection`, `engine`, `seed`.

    Raises:
        UserError: If the request can't be fulfilled.
    """
    kind = {"kind": strategy} if isinstance(strategy, str) else dict(strategy)
    config = federation._config(strategy=kind, **sections)
    folder = Path(out) if out is not None else federation._folder(config)
    built = federation._built_for(config)
    with notebook_progress() as display:
        _, trial, folder = workflow.run_training(config, folder, display, search_path=user_folders(), federation=built)
    numbers = pd.RangeIndex(1, trial.num_rounds + 1, name="round")
    return TrainedStrategy(folder, trial.summary(), pd.DataFrame(rounds_of(trial), index=numbers))


def _is_hugging_face(data: Any) -> bool:
    """Whether the data are of Hugging Face's library, checked without importing it."""
    return type(data).__module__.partition(".")[0] == "datasets"


def _dataset_from(data: Any, request: DatasetRequest) -> Dataset:
    """Return in-memory data as a data set; a DataFrame as the one that the same table in a file would be.

    Raises:
        DataError: If they can't be converted.
    """
    if isinstance(data, pd.DataFrame):
        table = read_frame(data, request.dropped)
        return dataset_from_own_table(GIVEN, table, request, request.label, source="a DataFrame")
    return _from_hugging_face(data, request) if _is_hugging_face(data) else _from_arrays(data, request)


def _from_hugging_face(data: Any, request: DatasetRequest) -> Dataset:
    import datasets

    if not isinstance(data, datasets.Dataset):
        raise DataError.of("data", "be one split of a data set (datasets.Dataset)", f"a {type(data).__name__}")
    return dataset_of_rows(GIVEN, data, request, "a Dataset")


OF_COLUMNS = ("client_column", "label", "group_column", "drop_columns", "columns", "missing_values", "text_column")


def _from_arrays(clients: Sequence[ClientArrays], request: DatasetRequest) -> Dataset:
    """Return the clients' arrays as one data set with natural clients.

    Raises:
        DataError: If the arrays do not match each other, or hold anything but finite numbers and labels.
    """
    faults = []
    usual = DatasetRequest(dataset=GIVEN)
    arrays = [(np.asarray(features), np.asarray(labels)) for features, labels in clients]
    shapes = {features.shape[1:] for features, _ in arrays}
    if not arrays:
        faults.append(Fault("a federation", "have at least one client", "none"))
    if len(shapes) > 1:
        faults.append(Fault("the clients' features", "have the same shape", ", ".join(map(str, sorted(shapes)))))
    for client, (features, labels) in enumerate(arrays):
        if features.ndim not in KIND_OF_ROWS or features.shape[:1] != labels.shape or not len(labels):
            must = "have features of shape (rows, columns) or (rows, channels, height, width), and one label per row"
            faults.append(Fault(f"client {client}", must, f"{features.shape} and {labels.shape}"))
        elif features.dtype.kind not in "fiub" or not np.isfinite(features).all():
            faults.append(Fault(f"the features of client {client}", "be finite numbers"))
        elif labels.dtype.kind == "f" and not np.isfinite(labels).all():
            faults.append(Fault(f"the labels of client {client}", "be finite"))
    for name in OF_COLUMNS:
        if (given := getattr(request, name)) != getattr(usual, name):
            faults.append(Fault(f"federation.{name}", "be left out with arrays, which have no named columns", given))
    if faults:
        raise DataError(faults)
    all_labels, target = np.concatenate([labels for _, labels in arrays]), None
    if request.predicts_quantity or (
        request.task is None and all_labels.dtype.kind == "f" and are_quantities(np.unique(all_labels), len(all_labels))
    ):
        target = quantity_target(GIVEN, "label", np.asarray(all_labels, dtype=np.float64))
        labels, class_names = target.labels, target.class_names
    else:
        classes, labels = np.unique(all_labels, return_inverse=True)
        class_names = tuple(map(str, classes.tolist()))
    features = np.concatenate([features for features, _ in arrays]).astype(np.float32)
    width = len(str(len(arrays)))
    return Dataset(
        name=GIVEN,
        features=features,
        labels=labels.astype(np.int64),
        class_names=class_names,
        targets=None if target is None else target.targets,
        feature_names=tuple(f"x{column}" for column in range(features.shape[1])) if features.ndim == 2 else (),
        source="arrays of clients",
        feature_unit=float(features.std()) or 1.0,
        client_ids=np.repeat([f"{client:0{width}}" for client in range(len(arrays))], [len(y) for _, y in arrays]),
        kind="table" if features.ndim == 2 else "image",
        facts={"num_rows": len(labels)},
    )
