"""The page of one study: verdict, federation, diagnosis, search, clients, confirmation, cost, how to reproduce.

Every section stands, whatever the folder holds; one that has nothing says what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pandas as pd

from fedscout.engine.fault_text import listed
from fedscout.experiments.reports.page.diagnosis_section import diagnosis
from fedscout.experiments.reports.page.front_table import front_table, objective_names
from fedscout.experiments.reports.page.page_parts import Page, Picture, Section, Table
from fedscout.experiments.reports.page.pictures.client_scores import client_scores
from fedscout.experiments.reports.page.pictures.confirmed_difference import confirmed_difference
from fedscout.experiments.reports.page.pictures.federation_map import (
    MOST_CLASSES,
    MOST_CLIENTS,
    class_map,
    client_sizes,
)
from fedscout.experiments.reports.page.pictures.learning_curves import learning_curves
from fedscout.experiments.reports.page.pictures.objective_front import ON_FRONT, objective_front
from fedscout.experiments.reports.page.pictures.strategy_space import strategy_space
from fedscout.experiments.reports.page.pictures.trial_costs import trial_costs
from fedscout.experiments.reports.page.reproduction import command_of
from fedscout.experiments.reports.page.study_files import StudyFiles, read_study_files
from fedscout.experiments.reports.page.study_tables import (
    BeforeAndAfter,
    client_table,
    cost_table,
    fittest,
    gain_rows,
    label_table,
    parameter_frame,
    searched,
    size_table,
)
from fedscout.experiments.reports.page.verdict_words import losers_sentence, verdict
from fedscout.experiments.reports.trial_columns import bytes_text, seconds_text
from fedscout.search.confirmation.confirmation import difference_text


def study_page(folder: Path) -> Page:
    """Return the page of a study's folder.

    Raises:
        LogError: If the folder holds none.
    """
    return page_of(read_study_files(folder))


def page_of(study: StudyFiles) -> Page:
    """Return the page of a study that was read."""
    clients = client_table(study)
    headline, lead, figures = verdict(study, clients)
    sections = (
        _federation(study),
        diagnosis(study),
        _search(study),
        _clients(study, clients),
        _confirmation(study),
        _cost(study),
        _reproduction(study),
    )
    return Page(study.name, headline, lead, figures, sections, foot=str(study.claim["config_hash"]))


def _federation(study: StudyFiles) -> Section:
    sizes, labels = size_table(study), label_table(study)
    if sizes.empty:
        return Section("federation", "Federation", missing=("Who holds what is told once the study is finished.",))
    total = int(sizes["rows"].sum())
    facts = f"{len(sizes)} clients hold {total:,} rows, from {sizes['rows'].min():,} to {sizes['rows'].max():,} each."
    model = study.federation.get("model")
    sentences = (facts if model is None else f"{facts} They train one model: {model}.", *study.dependence)
    pictures: list[Picture] = []
    missing: list[str] = []
    if labels.empty:
        missing.append("Which classes clients hold is not known, as the detectors were not asked.")
    else:
        pictures.append(_class_picture(labels))
    caption = "Rows of each client." + (" Red: changed by the scenario." if sizes["affected"].any() else "")
    pictures.append(Picture("client-rows", caption, client_sizes(sizes)))
    return Section("federation", "Federation", sentences, tuple(pictures), missing=tuple(missing))


def _class_picture(labels: pd.DataFrame) -> Picture:
    clients = list(dict.fromkeys(labels["client"]))[:MOST_CLIENTS]
    common = labels.groupby("class", sort=False)["rows"].sum().nlargest(MOST_CLASSES).index
    shown = labels[labels["client"].isin(clients) & labels["class"].isin(common)]
    caption = "A row a client, a column a class: the deeper the blue, the more of the client's rows are of it."
    num_clients, num_classes = labels["client"].nunique(), labels["class"].nunique()
    if num_clients > len(clients) or num_classes > len(common):
        caption += (
            f" The first {len(clients)} of {num_clients} clients, the {len(common)} commonest of {num_classes} classes."
        )
    caption += " Numbers are those that clients tell; too small ones are left out."
    return Picture("class-map", caption, class_map(shown))


def _search(study: StudyFiles) -> Section:
    trials = searched(study)
    failed = study.trials[study.trials["status"] == "failed"]
    name = study.measure.name
    if trials.empty:
        return Section("search", "Search", missing=("No training has finished yet.",), sentences=study.faults)
    tried = trials[trials["phase"] == "search"]
    best = fittest(trials)
    sentences = _one_shot(study) or [
        f"{len(tried)} configurations were tried beside FedAvg; the best on the search's seed is {best['name']}."
    ]
    policies = study.trials.loc[study.trials["phase"] == "search", "selection"].dropna().unique()
    if len(policies):
        sentences.append(f"Who trains in a round was chosen by {listed(map(str, policies))}.")
    if len(failed):
        reason = next(iter(failed["error"].dropna()), "unknown")
        sentences.append(f"{len(failed)} trainings failed; the first reason: {reason}.")
    curves = learning_curves(trials, study.score_measure.name)
    caption = (
        f"Mean {study.score_measure.name} of the clients after each round, a line a trial; grey are those not chosen."
    )
    pictures = [Picture("learning-curves", caption, curves)]
    missing: tuple[str, ...] = ()
    if len(tried) > 1:
        frame, parameters = parameter_frame(tried)
        caption = (
            "A line a trial, from its strategy through its parameters to its fitness at the bottom: blue is the best, "
            "and the greener, the better."
        )
        pictures.append(Picture("strategy-space", caption, strategy_space(frame, parameters, name)))
    else:
        missing = ("The space has too few trials to be drawn.",)
    pictures += _front(study)
    return Section("search", "Search", (*sentences, *study.faults), tuple(pictures), missing=missing)


def _one_shot(study: StudyFiles) -> list[str]:
    """Return who recommended what was trained, and why; nothing where a search chose."""
    answer = (study.result or {}).get("recommendation")
    if answer is None:
        return []
    model, (ground, *_) = answer["language_model"], answer["grounds"]
    told = "The rules answer, as they were asked." if model is None else f"The language model {model['model']} answers."
    return [f"Nothing was searched. {answer['instead_of_model'] or told}", f"{answer['name']}: {ground['because']}"]


def _front(study: StudyFiles) -> list[Picture]:
    """Return the picture of two objectives, nothing of one."""
    table = front_table(study)
    if table.empty:
        return []
    first, second = objective_names(study)
    count = int((table["front"] == ON_FRONT).sum())
    caption = (
        f"A point a trial, by {first} and {second}, both the larger the better. Blue: the {count} of {len(table)} that "
        "no other beats, being no worse by either and better by one."
    )
    return [Picture("front", caption, objective_front(table, (first, second)))]


def _clients(study: StudyFiles, found: BeforeAndAfter | None) -> Section:
    if found is None:
        reason = "Scores of single clients are not known: they need FedAvg and another strategy in the log."
        return Section("clients", "Who gains, who loses", missing=(reason,))
    table, names = found
    name = study.score_measure.name
    caption = (
        f"{name[:1].upper()}{name[1:]} of each client in the last round, mean over {int(table['seeds'].max())} "
        f"seed{'s' if table['seeds'].max() > 1 else ''}: grey with {names[0]}, blue with {names[1]}, "
        "red where it is less."
    )
    called = table.assign(client=[study.names.client(int(client)) for client in table["client"]])
    picture = Picture("client-scores", caption, client_scores(called, names, name))
    return Section("clients", "Who gains, who loses", (losers_sentence(study, found),), (picture,))


def _confirmation(study: StudyFiles) -> Section:
    confirmation = study.confirmation
    if confirmation is None:
        return Section("confirmation", "Confirmation", missing=("Nothing was confirmed on fresh seeds.",))
    view = confirmation.view
    names = {"fedavg": "FedAvg", "tuned-fedavg": "FedAvg, tuned"}
    means, seeds, rows = [], [], []
    for role, views in confirmation.versus.items():
        found = views[view]
        mean, each = gain_rows(names[role], confirmation, found)
        means.append(mean)
        seeds += each
        rows.append((names[role], difference_text(found, confirmation.measure, confirmation.design)))
    wider = "widened" if confirmation.design.same_rows else "new data"
    chart = confirmed_difference(pd.DataFrame(means), pd.DataFrame(seeds), confirmation.measure.unit, wider)
    caption = (
        f"What {confirmation.contestants[0].name} gains on each. Thin line: 95 % interval "
        f"{confirmation.design.wider_is}; thick: for another run on these rows; diamond: mean; ticks below: each fresh "
        "seed."
    )
    scores = Table(
        ("configuration", *(f"seed {number}" for number in range(1, len(confirmation.seeds) + 1)), "mean"),
        [
            (
                one.name if one.role in ("challenger", "contender") else names[one.role],
                *(f"{score:.4f}" for score in one.scores(view)),
                f"{sum(one.scores(view)) / len(one.scores(view)):.4f}",
            )
            for one in confirmation.contestants
            if len(one.scores(view)) == len(confirmation.seeds)
        ],
    )
    return Section(
        "confirmation",
        "Confirmation",
        (confirmation.sentence,),
        (Picture("confirmation", caption, chart),),
        scores if len(confirmation.seeds) <= 8 else None,
    )


def _cost(study: StudyFiles) -> Section:
    table = cost_table(study)
    if table.empty:
        return Section("cost", "Cost", missing=("Nothing was trained yet.",))
    rows = [
        (
            row["part"],
            str(row["trainings"]),
            str(row["rounds"]),
            bytes_text(1e6 * row["megabytes"]) if pd.notna(row["megabytes"]) else "",
            seconds_text(row["seconds"]),
        )
        for row in table.to_dict("records")
    ]
    headings = ("part", "trainings", "rounds", "sent and received", "time of trials")
    caption = "Rounds of each part of the study."
    sentences = ("What the study itself cost, on simulated clients; trials may have run side by side.",)
    return Section("cost", "Cost", sentences, (Picture("cost", caption, trial_costs(table)),), Table(headings, rows))


def _reproduction(study: StudyFiles) -> Section:
    command = command_of(study)
    missing = () if command else ("The command is not known to this version; config.json holds the configuration.",)
    return Section(
        "reproduction",
        "How to reproduce",
        ("The same command with the same versions gives the same numbers, on any number of hosts.",),
        table=Table(("what", "value"), list(chain(_identity(study))), ("value",)),
        missing=missing,
        code=command or "",
    )


def _identity(study: StudyFiles) -> Iterator[tuple[str, str]]:
    yield "configuration", str(study.claim["config_hash"])
    if "data_digest" in study.claim:
        yield "data", str(study.claim["data_digest"])
    yield "seed", f"{study.config.get('seed')}, of the federation {study.config.get('federation', {}).get('seed')}"
    if study.confirmation is not None:
        yield "fresh seeds", ", ".join(map(str, study.confirmation.seeds))
    yield "versions", ", ".join(f"{name} {version}" for name, version in study.claim.get("versions", {}).items())
    if "source" in study.federation:
        yield "source of the data", str(study.federation["source"])
