"""Values and tables of which pages are made.

What a page is made of: values that the template lays out. Texts are plain; the template escapes them.

A study as its folder tells it, finished or not: configuration, report, result, and the log as a table.

The folder is only read. What is not there, or can't be read, is None or empty, and `faults` says so.

Tables that a study's pictures and words rest on: each follows from files of its folder alone.

The trials of a study of two objectives, and which of them no other beats: read from its log alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import altair as alt
import pandas as pd
from pydantic import BaseModel, ValidationError

from fedscout.detectors import HeterogeneityReport
from fedscout.engine.data.federation import Names
from fedscout.engine.errors import Fault, LogError, StrategyError, UserError
from fedscout.engine.runtime.files import read_json_object
from fedscout.engine.trials.log import read_columns
from fedscout.experiments.charts import BEATEN, ON_FRONT
from fedscout.experiments.config import StudyConfig
from fedscout.experiments.reports.details import trial_name
from fedscout.experiments.studies.checks import measures_of_study
from fedscout.experiments.studies.run_folder import read_claim, read_result
from fedscout.search.confirmation.confirmation import Confirmation
from fedscout.search.confirmation.intervals import PairedDifference
from fedscout.search.ledger import beats
from fedscout.search.objective import ACCURACY, MEASURES, UNLIKE, Measure
from fedscout.strategies import parse_strategy
from fedscout.strategies.specification import SELECTION


class NothingToDrawError(UserError):
    """A picture was asked for of which the folder holds nothing."""


@dataclass(frozen=True)
class Picture:
    """A picture with the words below it.

    Attributes:
        name: Unique on its page, letters and hyphens; also the name of its file.
        caption: What there is to see, in a sentence or two.
        chart: As wide as whoever shows it makes it.
    """

    name: str
    caption: str
    chart: alt.TopLevelMixin


@dataclass(frozen=True)
class Table:
    """A small table: headings, and a text a cell. Columns but the first hold numbers unless `words` names them."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[str] = ()


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        name: Unique on its page.
        title: Its heading.
        sentences: A paragraph each.
        pictures: In order, below the sentences.
        table: Below the pictures.
        missing: What is not there and why, a sentence each.
        code: Commands, a line each.
    """

    name: str
    title: str
    sentences: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    table: Table | None = None
    missing: tuple[str, ...] = ()
    code: str = ""


@dataclass(frozen=True)
class Page:
    """A whole page, verdict first.

    Attributes:
        title: Of what it tells.
        headline: The verdict in a few words.
        lead: Sentences below it.
        figures: The few numbers that matter: what each is, and its text.
        sections: In order.
        foot: The last line.
    """

    title: str
    headline: str
    lead: tuple[str, ...]
    figures: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...] = field(default=())
    foot: str = ""

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """All pictures, in order."""
        return tuple(picture for section in self.sections for picture in section.pictures)


COLUMNS = (
    "trial",
    "phase",
    "generation",
    "strategy",
    "parameters",
    "seed",
    "learning_rate",
    "status",
    "error",
    "fitness",
    "num_rounds",
    "metric",
    "round_accuracy",
    "round_clean_accuracy",
    "round_metric",
    "round_clean_metric",
    "client",
    "client_num_examples",
    "client_accuracy",
    "client_clean_accuracy",
    "client_metric",
    "client_clean_metric",
    "bytes_down",
    "bytes_up",
    "seconds",
    "versions",
    "objectives",
    "selection",
    "client_rounds",
    "round_seconds",
)

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class StudyFiles:
    """What a study's folder holds.

    Attributes:
        folder: The folder.
        claim: `config.json`.
        result: `result.json`; None while the study is not finished.
        report: Of the detectors; None if they were not asked.
        confirmation: Out of the result; None without.
        trials: The log, a row a trial by number, columns as in docs/log.md; lists are lists.
        faults: What could not be read, a sentence each.
    """

    folder: Path
    claim: Mapping[str, Any]
    result: Mapping[str, Any] | None
    report: HeterogeneityReport | None
    confirmation: Confirmation | None
    trials: pd.DataFrame
    faults: tuple[str, ...]

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration, as far as it decides results."""
        held: Mapping[str, Any] = self.claim["config"]
        return held

    @property
    def federation(self) -> Mapping[str, Any]:
        """Facts of the federation; empty while the study is not finished."""
        return {} if self.result is None else self.result.get("federation", {})

    @property
    def dependence(self) -> tuple[str, ...]:
        """What must be known of its scores, of rows that belong together above all, a sentence each."""
        return tuple(map(str, (self.result or {}).get("dependence", ())))

    @property
    def name(self) -> str:
        """What the study is of."""
        known = self.federation.get("name") or next(iter(self.trials["study"]), "")
        return str(known or self.config.get("federation", {}).get("dataset", self.folder.name))

    @property
    def view(self) -> str:
        """The view that decides: `own` or `clean`."""
        return str(self.config.get("search", {}).get("view", "own"))

    @cached_property
    def measure(self) -> Measure:
        """What the fitness is of."""
        if self.confirmation is not None:
            return self.confirmation.measure
        if self.config.get("search", {}).get("objective", "accuracy") != "accuracy":
            return UNLIKE
        return self.score_measure

    @property
    def score_measure(self) -> Measure:
        """What the score of a round is of."""
        measured = self.trials["metric"].dropna()
        return MEASURES.get(next(iter(measured), "accuracy"), ACCURACY)

    @property
    def class_names(self) -> list[str]:
        """Names of the classes; their numbers where they are not known."""
        names = [str(name) for name in self.federation.get("class_names", ())]
        count = 0 if self.report is None else self.report.num_classes
        return names if len(names) >= count else [str(number) for number in range(count)]

    @property
    def names(self) -> Names:
        """Names of its clients and classes; positions while the study is not finished."""
        return Names(tuple(map(str, self.federation.get("client_names", ()))), tuple(self.class_names))

    def scores(self, trial: Mapping[str, Any], of: str = "round") -> list[float]:
        """Return a trial's scores in the deciding view, of each round or, `of="client"`, of each client."""
        measure = "accuracy" if pd.isna(trial["metric"]) else "metric"
        name = f"{of}_{'clean_' if self.view == 'clean' else ''}{measure}"
        found = trial.get(name)
        return list(found) if isinstance(found, list) else []


def read_study_files(folder: Path) -> StudyFiles:
    """Read a study's folder.

    Raises:
        LogError: If the folder holds none.
    """
    claim, _ = read_claim(folder)
    faults: list[str] = []
    result = None
    try:
        result = read_result(folder)
    except LogError as error:
        faults.append(f"{error}.")
    written = _read(folder / "report.json", faults) or (result or {}).get("report")
    confirmed = (result or {}).get("confirmation")
    rows, unread = read_columns(folder / "trials", ["study", *COLUMNS], claim["config_hash"])
    faults += [f"{path.name} of the log can't be used and is left out ({reason})." for path, reason in unread.items()]
    trials = pd.DataFrame(rows, columns=["study", *COLUMNS])
    trials["parameters"] = [json.loads(held or "{}") for held in trials["parameters"]]
    if result is None and trials.empty and written is None:
        raise LogError(Fault("the folder", "hold a study", f"{folder} without a trial or a report that can be read"))
    return StudyFiles(
        folder,
        claim,
        result,
        _parsed(HeterogeneityReport, written, "report", faults),
        _parsed(Confirmation, confirmed, "confirmation", faults),
        trials,
        tuple(faults),
    )


def _read(path: Path, faults: list[str]) -> dict[str, Any] | None:
    try:
        return read_json_object(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        faults.append(f"{path.name} can't be read ({type(error).__name__}).")
        return None


def _parsed(kind: type[Model], document: Any, what: str, faults: list[str]) -> Model | None:
    if document is None:
        return None
    try:
        return kind.model_validate(document)
    except ValidationError:
        faults.append(f"The {what} is of another version and is left out.")
        return None


PARTS: Mapping[str, str] = {
    "baseline": "FedAvg",
    "search": "search",
    "tuned-baseline": "tuning FedAvg",
    "confirmation": "confirmation",
    "train": "training",
}
"""Phases of the log for people."""

NOT_SEARCHED = ("sample_scaling", "path")
"""Parameters that no axis shows."""

BeforeAndAfter = tuple[pd.DataFrame, tuple[str, str]]
"""Clients' scores with one strategy and with another, and what the two are called."""


@dataclass(frozen=True)
class Configured:
    """A configuration as the log knows it: strategy, parameters and the clients' step size."""

    strategy: str
    parameters: str
    learning_rate: float

    @classmethod
    def of(cls, held: Any) -> Configured:
        """Return that of a trial, a contestant, or a row of either."""
        own: Mapping[str, Any] = held if isinstance(held, Mapping) else vars(held)
        return cls(own["strategy"], json.dumps(dict(own["parameters"]), sort_keys=True), own["learning_rate"])


def rows_of(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a table's rows, by the names of its columns."""
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def fittest(trials: pd.DataFrame) -> dict[str, Any]:
    """Return the trial of largest fitness, the first of equals, of at least one."""
    return max(rows_of(trials), key=lambda trial: float(trial["fitness"]))


def policy_of(trial: Mapping[str, Any]) -> str | None:
    """Return the policy by which a trial's clients were chosen; None without one, as in logs of earlier versions."""
    selection = trial.get(SELECTION)
    return selection if isinstance(selection, str) else None


def strategy_name(trial: Mapping[str, Any]) -> str:
    """Return a trial's strategy with its parameters and its policy, as everywhere: `fedprox(proximal_mu=0.1)`.

    The policy stands there where the parameters name it, or the study is this one training: of a search, all trials
    that name none have the study's. A user's own strategy, whose code no page runs, and one of another version are
    shown as the log has them.
    """
    strategy, parameters = str(trial["strategy"]), trial["parameters"]
    selection = policy_of(trial) if trial.get("phase") == "train" else None
    if '"path"' not in json.dumps(parameters):
        with suppress(StrategyError):
            return trial_name(parse_strategy({**parameters, "kind": strategy}), selection)
    if selection is not None:
        parameters = {**parameters, SELECTION: selection}
    shown = [f"{name}={value}" for name, value in parameters.items() if value is not None and name != "path"]
    return f"{strategy}({', '.join(shown)})" if shown else strategy


def searched(study: StudyFiles) -> pd.DataFrame:
    """Return trials on the search's seed that can be compared, `role` saying which are in front.

    A row has `trial`, `name`, `scores`, `fitness`, `role`, `chosen`, `phase`, `strategy` and `parameters`.
    """
    own = study.trials[study.trials["phase"] != "confirmation"]
    own = own[(own["phase"] != "tuned-baseline") | (own["seed"] == study.config.get("seed", 0))]
    own = own[own["status"] == "completed"]
    front = _front(study, own)
    rows = []
    for trial in rows_of(own):
        role = front.get(trial["trial"], "")
        held = {name: trial[name] for name in ("trial", "fitness", "phase", "strategy", "parameters")}
        name = strategy_name(trial)
        if trial["phase"] == "tuned-baseline":
            name = f"{name}, client rate {trial['learning_rate']:g}"
        chosen = role.startswith(("chosen", "best"))
        rows.append({**held, "name": name, "scores": study.scores(trial), "role": role, "chosen": chosen})
    columns = ["trial", "name", "scores", "fitness", "role", "chosen", "phase", "strategy", "parameters"]
    return pd.DataFrame(rows, columns=columns)


def _front(study: StudyFiles, trials: pd.DataFrame) -> dict[int, str]:
    """Return the trials that are shown in front, by number: the pick, FedAvg, and FedAvg at its tuned rate."""
    by_configuration: dict[Configured, int] = {}
    for trial in rows_of(trials):
        by_configuration.setdefault(Configured.of(trial), trial["trial"])
    front = dict.fromkeys(trials.loc[trials["phase"] == "baseline", "trial"].tolist(), "FedAvg")
    confirmation = study.confirmation
    if confirmation is None:
        candidates = trials[trials["phase"].isin(["search", "train"])]
        if len(candidates):
            front[fittest(candidates)["trial"]] = "best so far"
        return front
    better = confirmation.verdict == "better"
    words = {"tuned-fedavg": "FedAvg, tuned rate", "challenger": "chosen" if better else "best of the search"}
    for one in confirmation.contestants:
        number = by_configuration.get(Configured.of(one))
        if number is not None and one.role in words:
            front[number] = words[one.role]
    return front


def parameter_frame(trials: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return trials with a column a parameter, and the names of those that take several values, the commonest first."""
    flat = pd.DataFrame([_plain(held) for held in trials["parameters"]], index=trials.index)
    flat = flat.drop(columns=[name for name in NOT_SEARCHED if name in flat])
    varying = [name for name in map(str, flat) if len(flat[name].dropna().unique()) > 1]
    varying.sort(key=lambda name: -len(flat[name].dropna()))
    clash = {name: f"{name} (parameter)" for name in map(str, flat) if name in trials}
    return trials.join(flat.rename(columns=clash)), [clash.get(name, name) for name in varying]


def _plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, int | float | str | bool) else json.dumps(value)
        for name, value in parameters.items()
        if value is not None
    }


def label_table(study: StudyFiles) -> pd.DataFrame:
    """Return what clients tell of their labels: `client`, `class`, `rows`, `share`, every pair, in order."""
    if study.report is None:
        return pd.DataFrame(columns=["client", "class", "rows", "share"])
    names = study.class_names
    rows = [
        {
            "client": study.names.client(facts.client),
            "class": names[place],
            "rows": count,
            "share": count / max(facts.num_rows, 1),
        }
        for facts in study.report.clients
        for place, count in enumerate(facts.label_counts)
    ]
    return pd.DataFrame(rows, columns=["client", "class", "rows", "share"])


def size_table(study: StudyFiles) -> pd.DataFrame:
    """Return `client`, `rows` and `affected` of every client."""
    affected = set((study.result or {}).get("affected_clients", ()))
    sizes = dict(enumerate(study.federation.get("client_rows", ())))
    if not sizes and study.report is not None:
        sizes = {facts.client: facts.num_rows for facts in study.report.clients}
    rows = [
        {"client": study.names.client(client), "rows": int(size), "affected": client in affected}
        for client, size in sizes.items()
    ]
    return pd.DataFrame(rows, columns=["client", "rows", "affected"])


def client_table(study: StudyFiles) -> BeforeAndAfter | None:
    """Return clients' scores before and after, means over paired seeds of the log, and what was used; None if unknown.

    Before is the reference of the confirmation, or plain FedAvg without one; after is the pick. Columns are `client`,
    `before`, `after`, `change`, `worse`, `seeds_worse`, `seeds` and `rows`.
    """
    pair = _before_and_after(study)
    if pair is None:
        return None
    (before, before_name), (after, after_name) = pair
    old, new = _by_client(study, before), _by_client(study, after)
    joined = old.merge(new, on=["seed", "client"], suffixes=("_before", "_after"))
    if joined.empty:
        return None
    joined["is_worse"] = joined["score_after"] < joined["score_before"]
    grouped = joined.groupby("client", sort=True)
    table = pd.DataFrame(
        {
            "before": grouped["score_before"].mean(),
            "after": grouped["score_after"].mean(),
            "seeds_worse": grouped["is_worse"].sum(),
            "seeds": grouped.size(),
            "rows": grouped["rows_after"].mean().round(1),
        }
    ).reset_index()
    table["change"] = table["after"] - table["before"]
    table["worse"] = [f"{a} of {b} seeds" for a, b in zip(table["seeds_worse"], table["seeds"], strict=True)]
    table["client"] = table["client"].astype(str)
    return table, (before_name, after_name)


def _before_and_after(study: StudyFiles) -> tuple[tuple[pd.DataFrame, str], tuple[pd.DataFrame, str]] | None:
    trials = study.trials[study.trials["status"] == "completed"]
    confirmation = study.confirmation
    if confirmation is None:
        base = trials[trials["phase"] == "baseline"]
        found = trials[trials["phase"].isin(["search", "train"])]
        if base.empty or found.empty:
            return None
        best = fittest(found)
        return (base, "FedAvg"), (found[found["trial"] == best["trial"]], strategy_name(best))
    own = trials[trials["phase"] == "confirmation"]
    keys = [Configured.of(trial) for trial in rows_of(own)]
    by_role = {one.role: one for one in reversed(confirmation.contestants)}
    reference, pick = by_role[confirmation.reference], confirmation.contestants[0]
    sides = []
    for one in (reference, pick):
        wanted = Configured.of(one)
        name = one.name if one is pick else f"FedAvg, rate {one.learning_rate:g}"
        sides.append((own[[key == wanted for key in keys]], name))
    return sides[0], sides[1]


def _by_client(study: StudyFiles, trials: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for trial in rows_of(trials):
        scores = study.scores(trial, "client")
        for client, score, count in zip(trial["client"], scores, trial["client_num_examples"], strict=False):
            rows.append({"seed": trial["seed"], "client": client, "score": score, "rows": count})
    return pd.DataFrame(rows, columns=["seed", "client", "score", "rows"]).dropna(subset=["score"])


def gain_rows(
    against: str, confirmation: Confirmation, difference: PairedDifference
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what `confirmed_difference` draws of a comparison, in the measure's unit: its means, and a row a seed.

    Args:
        against: What the row is called.
        confirmation: Whose comparison it is.
        difference: The challenger's to what it is compared with.
    """
    factor = confirmation.measure.per_unit
    ends = {name: getattr(difference, name) for name in ("mean", "low", "high", "here_low", "here_high")}
    scaled = {name: None if end is None else factor * end for name, end in ends.items()}
    seeds = [
        {"against": against, "seed": str(seed), "difference": factor * each}
        for seed, each in zip(confirmation.seeds, difference.differences, strict=False)
    ]
    return {"against": against, **scaled}, seeds


def cost_table(study: StudyFiles) -> pd.DataFrame:
    """Return `part`, `trainings`, `rounds`, `megabytes` and `seconds` of each part of the study, in its order."""
    trials = study.trials
    repetitions = study.config.get("training", {}).get("repetitions", 1)
    sent = (trials["bytes_down"].astype(float) + trials["bytes_up"].astype(float)) * trials["num_rounds"] / 1e6
    grouped = trials.assign(megabytes=sent).groupby("phase", sort=False)
    table = pd.DataFrame(
        {
            "trainings": grouped.size() * repetitions,
            "rounds": grouped["num_rounds"].sum() * repetitions,
            "megabytes": grouped["megabytes"].sum() * repetitions,
            "seconds": grouped["seconds"].sum(),
        }
    ).reindex([phase for phase in PARTS if phase in set(trials["phase"])])
    return table.rename(index=PARTS).rename_axis("part").reset_index()


def front_table(study: StudyFiles) -> pd.DataFrame:
    """Return `trial`, `name`, `first`, `second` and `front` of FedAvg and what was searched; empty of one objective."""
    trials = study.trials[(study.trials["status"] == "completed") & study.trials["phase"].isin(["baseline", "search"])]
    searched = [trial for trial in rows_of(trials) if isinstance(trial["objectives"], list)]
    points = [trial["objectives"] for trial in searched]
    rows = [
        {
            "trial": trial["trial"],
            "name": strategy_name(trial),
            "first": own[0],
            "second": own[1],
            "front": BEATEN if any(beats(other, own) for other in points) else ON_FRONT,
        }
        for trial, own in zip(searched, points, strict=True)
    ]
    return pd.DataFrame(rows, columns=["trial", "name", "first", "second", "front"])


def objective_names(study: StudyFiles) -> tuple[str, str]:
    """Return what the two objectives measure; their keys where the configuration is of another version."""
    try:
        names = [measure.name for measure in measures_of_study(StudyConfig.model_validate(study.config))]
    except ValidationError:
        names = list(map(str, study.config["search"]["objective"]))
    return names[0], names[1]
