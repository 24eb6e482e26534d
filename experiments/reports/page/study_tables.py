"""Tables that a study's pictures and words rest on: each follows from files of its folder alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fedscout.engine.errors import StrategyError
from fedscout.experiments.reports.page.study_files import StudyFiles
from fedscout.experiments.reports.trial_name import trial_name
from fedscout.search.confirmation.confirmation import Confirmation
from fedscout.search.confirmation.intervals import PairedDifference
from fedscout.strategies import parse_strategy
from fedscout.strategies.specification import SELECTION

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
