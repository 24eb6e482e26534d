"""The page of one study: verdict, federation, diagnosis, search, clients, confirmation, cost, how to reproduce.

Every section stands, whatever the folder holds; one that has nothing says what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pandas as pd

from fedscout.detectors import HeterogeneityReport
from fedscout.detectors.report import CalibratedFinding, DetectorName, Finding
from fedscout.detectors.verdict import verdicts
from fedscout.experiments.reports.naming import Naming
from fedscout.experiments.reports.page.page_parts import Page, Picture, Section, Table
from fedscout.experiments.reports.page.pictures.client_scores import client_scores
from fedscout.experiments.reports.page.pictures.confirmed_difference import confirmed_difference
from fedscout.experiments.reports.page.pictures.detector_evidence import (
    FLAGGED,
    NOT_FLAGGED,
    density,
    evidence,
    positions,
)
from fedscout.experiments.reports.page.pictures.federation_map import (
    MOST_CLASSES,
    MOST_CLIENTS,
    class_map,
    client_sizes,
)
from fedscout.experiments.reports.page.pictures.learning_curves import learning_curves
from fedscout.experiments.reports.page.pictures.strategy_space import strategy_space
from fedscout.experiments.reports.page.pictures.trial_costs import trial_costs
from fedscout.experiments.reports.page.reproduction import command_of
from fedscout.experiments.reports.page.study_files import StudyFiles, read_study_files
from fedscout.experiments.reports.page.study_tables import (
    client_table,
    cost_table,
    fittest,
    label_table,
    parameter_frame,
    searched,
    size_table,
)
from fedscout.experiments.reports.page.verdict_words import losers_sentence, verdict
from fedscout.experiments.reports.trial_columns import bytes_text, seconds_text
from fedscout.search.confirmation.confirmation import difference_text

VALUES: dict[DetectorName, tuple[str, str]] = {
    "label_skew": ("label-divergences", "Jensen-Shannon divergence of labels"),
    "feature_skew": ("feature-distances", "distance of the centroid from the median one"),
    "outliers": ("model-distances", "distance of the model from the others'"),
}
"""Of each detector: its picture's name, and what the picture draws of each client."""

FOUND: dict[DetectorName, tuple[str, str]] = {
    "label_skew": ("Label skew", "clients hold different classes"),
    "feature_skew": ("Feature skew", "rows of the same class look different"),
    "outliers": ("Outlier clients", "labels or models disagree with the others'"),
}


def study_page(folder: Path) -> Page:
    """Return the page of a study's folder.

    Raises:
        LogError: If the folder holds none.
    """
    return page_of(read_study_files(folder))


def page_of(study: StudyFiles) -> Page:
    """Return the page of a study that was read."""
    headline, lead, figures = verdict(study)
    sections = (
        _federation(study),
        _diagnosis(study),
        _search(study),
        _clients(study),
        _confirmation(study),
        _cost(study),
        _reproduction(study),
    )
    named = tuple(_named(section, study.naming) for section in sections)
    lead = tuple(map(study.naming.told, lead))
    return Page(study.name, headline, lead, figures, named, foot=str(study.claim["config_hash"]))


def _named(section: Section, naming: Naming) -> Section:
    """Return a section whose words call clients and classes by their names."""
    pictures = tuple(replace(picture, caption=naming.told(picture.caption)) for picture in section.pictures)
    sentences, missing = (tuple(map(naming.told, words)) for words in (section.sentences, section.missing))
    return replace(section, sentences=sentences, pictures=pictures, missing=missing)


def _federation(study: StudyFiles) -> Section:
    sizes, labels = size_table(study), label_table(study)
    if sizes.empty:
        return Section("federation", "Federation", missing=("Who holds what is told once the study is finished.",))
    total = int(sizes["rows"].sum())
    facts = f"{len(sizes)} clients hold {total:,} rows, from {sizes['rows'].min():,} to {sizes['rows'].max():,} each."
    model = study.federation.get("model")
    sentences = [facts if model is None else f"{facts} They train one model: {model}."]
    pictures: list[Picture] = []
    missing: list[str] = []
    if labels.empty:
        missing.append("Which classes clients hold is not known, as the detectors were not asked.")
    else:
        pictures.append(_class_picture(labels))
    caption = "Rows of each client." + (" Red: changed by the scenario." if sizes["affected"].any() else "")
    pictures.append(Picture("client-rows", caption, client_sizes(sizes)))
    return Section("federation", "Federation", tuple(sentences), tuple(pictures), missing=tuple(missing))


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


def _diagnosis(study: StudyFiles) -> Section:
    report = study.report
    if report is None:
        reason = "The detectors were not asked: fedscout run asks them, fedscout search and train do not."
        return Section("diagnosis", "Diagnosis", missing=(reason,))
    rows, pictures, missing = [], [], []
    for found in verdicts(report):
        finding = next(one for one in report.findings if one.name == found.name)
        title, meaning = FOUND[found.name]
        answer = ("yes" if found.detected else "no") if found.measured else "not measured"
        flagged = ", ".join(map(study.naming.client, found.decided_by.flagged_clients[:12])) or "none"
        rows.append((title, answer, flagged, _strength(found.decided_by), meaning))
        picture = _evidence_picture(report, study.naming, finding, found.decided_by, found.sentence)
        if picture is None:
            missing.append(found.sentence)
        else:
            pictures.append(picture)
        if found.name == "feature_skew":
            pictures += _centroids(report, study.naming, found.decided_by) + _density(
                report, study.naming, found.decided_by
            )
            pictures += _places(report, study.naming, found.decided_by)
    table = Table(
        ("property", "found", "clients", "strength", "what it means"), rows, ("found", "clients", "what it means")
    )
    sentences = (*report.beside, *report.notes)
    return Section("diagnosis", "Diagnosis", sentences, tuple(pictures), table, tuple(missing))


def _strength(found: Finding | CalibratedFinding) -> str:
    value = found.effect if isinstance(found, CalibratedFinding) else found.value
    return "" if value is None else f"{value:.3g}"


def _evidence_picture(
    report: HeterogeneityReport, naming: Naming, finding: Finding, decided: Finding | CalibratedFinding, sentence: str
) -> Picture | None:
    values = report.metrics.model_distances if finding.name == "outliers" else finding.client_values
    if not values:
        return None
    name, title = VALUES[finding.name]
    tested = decided.clients if isinstance(decided, CalibratedFinding) else {}
    rows = []
    for client, value in values.items():
        own = tested.get(client)
        why = "" if own is None else f"{own.source}, effect {own.effect:.3g}, p = {own.p_value:.2g}"
        flagged = _flag(client, decided)
        rows.append({"client": naming.client(client), "value": value, "flagged": flagged, "why": why})
    threshold = None if finding.name == "outliers" or not finding.measured else finding.threshold
    line = "" if threshold is None else " Dashed: the published rule's threshold."
    by = " Colour: the test's decision, which compares more than this value." if tested else ""
    if finding.name == "feature_skew" and report.label_skew.detected:
        by += " Skewed labels alone move centroids apart."
    return Picture(name, f"{sentence}{line}{by}", evidence(pd.DataFrame(rows), title, threshold))


def _centroids(report: HeterogeneityReport, naming: Naming, decided: Finding | CalibratedFinding) -> list[Picture]:
    sizes = {facts.client: facts.num_rows for facts in report.clients}
    rows = [
        {
            "client": naming.client(client),
            "x": place[0],
            "y": place[1],
            "rows": sizes.get(client, 0),
            "flagged": _flag(client, decided),
        }
        for client, place in report.centroids.items()
    ]
    if not rows:
        return []
    caption = (
        "The mean of each client's rows on the two principal axes of all rows, whatever their class; the larger, the "
        "more rows. Clients that hold other classes lie apart here, too."
    )
    chart = positions(pd.DataFrame(rows), ("first principal axis", "second principal axis"))
    return [Picture("feature-centroids", caption, chart)]


def _density(report: HeterogeneityReport, naming: Naming, decided: Finding | CalibratedFinding) -> list[Picture]:
    held = report.density
    if held is None:
        return []
    filled = [place for counts in held.counts.values() for place, count in enumerate(counts) if count]
    shown = range(min(filled, default=0) - 1, max(filled, default=0) + 2)
    rows = [
        {
            "client": naming.client(client),
            "value": held.start + (place + 0.5) * held.width,
            "share": count / max(sum(counts), 1),
        }
        | {"flagged": _flag(client, decided)}
        for client, counts in list(held.counts.items())[:MOST_CLIENTS]
        for place, count in enumerate(counts)
        if place in shown
    ]
    caption = "How each client's values of the feature of largest variance are spread, a line a client."
    if len(held.counts) > MOST_CLIENTS:
        caption += f" The first {MOST_CLIENTS} of {len(held.counts)} clients."
    return [Picture("feature-density", caption, density(pd.DataFrame(rows), f"feature {held.feature}"))]


def _flag(client: int, decided: Finding | CalibratedFinding) -> str:
    return FLAGGED if client in decided.flagged_clients else NOT_FLAGGED


def _places(report: HeterogeneityReport, naming: Naming, decided: Finding | CalibratedFinding) -> list[Picture]:
    """Return where clients' rows lie, rows of the same class compared; nothing where no two axes tell clients apart."""
    sizes = {facts.client: facts.num_rows for facts in report.clients}
    rows = [
        {
            "client": naming.client(one.client),
            "x": one.shift[0],
            "y": one.shift[1],
            "rows": sizes.get(one.client, 0),
            "flagged": _flag(one.client, decided),
        }
        for one in report.features
        if len(one.shift) > 1
    ]
    if not rows:
        return []
    caption = (
        "Where clients' rows lie against the median client's, rows of the same class compared, on the two axes on "
        "which clients differ most; in standard deviations, what chance explains taken off. The larger, the more rows."
    )
    chart = positions(pd.DataFrame(rows), ("first shared axis", "second shared axis"))
    return [Picture("feature-shifts", caption, chart)]


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
    return Section("search", "Search", (*sentences, *study.faults), tuple(pictures), missing=missing)


def _one_shot(study: StudyFiles) -> list[str]:
    """Return who recommended what was trained, and why; nothing where a search chose."""
    answer = (study.result or {}).get("recommendation")
    if answer is None:
        return []
    model, (ground, *_) = answer["language_model"], answer["grounds"]
    told = "The rules answer, as they were asked." if model is None else f"The language model {model['model']} answers."
    return [f"Nothing was searched. {answer['instead_of_model'] or told}", f"{answer['name']}: {ground['because']}"]


def _clients(study: StudyFiles) -> Section:
    found = client_table(study)
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
    called = table.assign(client=[study.naming.client(int(client)) for client in table["client"]])
    picture = Picture("client-scores", caption, client_scores(called, names, name))
    return Section("clients", "Who gains, who loses", (losers_sentence(study),), (picture,))


def _confirmation(study: StudyFiles) -> Section:
    confirmation = study.confirmation
    if confirmation is None:
        return Section("confirmation", "Confirmation", missing=("Nothing was confirmed on fresh seeds.",))
    factor, view = confirmation.measure.per_unit, confirmation.view
    names = {"fedavg": "FedAvg", "tuned-fedavg": "FedAvg, tuned"}
    means, seeds, rows = [], [], []
    for role, views in confirmation.versus.items():
        found = views[view]
        ends = {name: getattr(found, name) for name in ("mean", "low", "high", "here_low", "here_high")}
        scaled = {name: None if end is None else factor * end for name, end in ends.items()}
        means.append({"against": names[role], **scaled})
        seeds += [
            {"against": names[role], "seed": str(seed), "difference": factor * difference}
            for seed, difference in zip(confirmation.seeds, found.differences, strict=False)
        ]
        rows.append((names[role], difference_text(found, confirmation.measure)))
    chart = confirmed_difference(pd.DataFrame(means), pd.DataFrame(seeds), confirmation.measure.unit)
    caption = (
        f"What {confirmation.contestants[0].name} gains on each. Thin line: 95 % interval for new data from these "
        "clients; thick: for another run on these rows; diamond: mean; ticks below: each fresh seed."
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
