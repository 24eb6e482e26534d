"""The HTML page of a study or a sweep, with its files.

A page is one self-contained HTML file: charts are embedded as Vega-Lite specifications together with Vega's code. Its
`Content-Security-Policy` forbids loading anything. Untrusted text, such as names of files, columns, classes and
strategies, is escaped by the template and in chart data.

A study's page has a verdict, federation, diagnosis, search, clients, confirmation, cost, and the command to reproduce
it, which is built from the configuration and checked to give the same digest. Every section is always present; an empty
one states what is missing.

Vega, Vega-Lite and Vega-Embed come from vl-convert, which bundles them and needs no network. As bundling takes more
than a second, the code is cached in the user's cache folder. vl-convert also renders charts to files, without a
browser. A report that can't be written does not affect the study.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shlex
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.filesize import decimal

from fedscout.engine.errors import ConfigurationError, UserError, first_line
from fedscout.engine.runtime.files import refuse_links, write_atomically
from fedscout.engine.text import listed
from fedscout.experiments import charts
from fedscout.experiments.config import StudyConfig, flattened, load_config, setting_text
from fedscout.experiments.reports import page_study
from fedscout.experiments.reports.console import seconds_text
from fedscout.experiments.reports.page_study import Page, Picture, Section, Table, diagnosis, losers_sentence, verdict
from fedscout.experiments.studies.result import StoredStudy, read_study
from fedscout.experiments.studies.run_folder import GridFolder
from fedscout.experiments.text import visible


def command_of(study: StoredStudy) -> str | None:
    """Return a command that reproduces the study; None if no command of this version has the same digest."""
    try:
        given, usual = flattened(study.claim["config"]), flattened(StudyConfig().identity())
        settings = [f"{key}={setting_text(value)}" for key, value in given.items() if value != usual.get(key)]
        config = load_config(settings, None)
    except (UserError, TypeError, ValueError):
        return None
    digests = {"run": config.digest(), "search": config.without_diagnosis().digest()}
    names = ["search", "run"] if study.report is None else ["run", "search"]
    command = next((name for name in names if digests[name] == study.claim["config_hash"]), None)
    if command is None:
        return None
    if {trial.phase for trial in study.trials} == {"train"}:
        command = "train"
    return shlex.join(["fedscout", command, *settings])


def study_page(folder: Path) -> Page:
    """Return the page of a study's folder.

    Raises:
        LogError: If the folder holds no study.
    """
    study = read_study(folder)
    clients = page_study.client_table(study)
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
    return Page(study.name, headline, lead, figures, sections, footer=str(study.claim["config_hash"]))


def _federation(study: StoredStudy) -> Section:
    sizes, labels = page_study.size_table(study), page_study.label_table(study)
    if sizes.empty:
        return Section("federation", "Federation", missing=("Client data are shown once the study is finished.",))
    total = int(sizes["rows"].sum())
    facts = f"{len(sizes)} clients hold {total:,} rows, from {sizes['rows'].min():,} to {sizes['rows'].max():,} each."
    model = study.facts.federation.model
    sentences = (f"{facts} They train the model {model}." if model else facts, *study.facts.dependence)
    pictures = [
        Picture("client-rows", "Rows of each client. Red: changed by the scenario.", charts.client_sizes(sizes))
    ]
    missing = ("The classes of each client are unknown, as detection did not run.",) if labels.empty else ()
    if not labels.empty:
        clients = list(dict.fromkeys(labels["client"]))[: charts.MOST_CLIENTS]
        common = labels.groupby("class", sort=False)["rows"].sum().nlargest(charts.MOST_CLASSES).index
        displayed = labels[labels["client"].isin(clients) & labels["class"].isin(common)]
        pictures.insert(0, Picture("class-map", CLASS_MAP, charts.class_map(displayed)))
    return Section("federation", "Federation", sentences, tuple(pictures), missing=missing)


CLASS_MAP = (
    "Rows are clients and columns are classes; a stronger blue is a larger share of the client's rows. Counts are "
    "those reported by clients, who withhold small counts. At most "
    f"{charts.MOST_CLIENTS} clients and the {charts.MOST_CLASSES} largest classes are shown."
)


def _search(study: StoredStudy) -> Section:
    trials = page_study.searched(study)
    failed = [trial for trial in study.trials if trial.status == "failed"]
    if trials.empty:
        return Section("search", "Search", missing=("No training has finished yet.",), sentences=study.faults)
    tried, best = (trials["phase"] == "search").sum(), trials["name"].iloc[int(trials["fitness"].argmax())]
    answer = study.facts.recommendation
    sentences = [f"{tried} configurations were tried besides FedAvg; the best on the search's seed is {best}."]
    if answer is not None:
        reason = f"{answer.name}: {answer.reasons[0].explanation}"
        sentences = [f"No search was run. {answer.answered_by}", reason]
    policies = {trial.selection: None for trial in study.trials if trial.phase == "search" and trial.selection}
    if policies:
        sentences.append(f"The clients of each round were selected by {listed(map(str, policies))}.")
    if failed:
        sentences.append(f"{len(failed)} trainings failed; the first reason: {failed[0].error or 'unknown'}.")
    displayed = _drawn_trials(trials)
    curves = charts.learning_curves(displayed, study.score_measure.name)
    caption = (
        f"Mean {study.score_measure.name} of the clients after each round, one line per trial; grey: not chosen. "
        f"At most {MAX_DRAWN} of these are drawn, evenly spaced by their fitness."
    )
    picture = Picture("learning-curves", caption, curves)
    return Section("search", "Search", (*sentences, *study.faults), (picture,))


MAX_DRAWN = 600
"""Trials on a page of at most two megabytes."""


def _drawn_trials(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the highlighted trials, and of the others as many as a page has room for, evenly spaced by fitness."""
    others = trials[trials["role"] == ""].sort_values("fitness", kind="stable")
    kept = others.iloc[np.linspace(0, len(others) - 1, min(len(others), MAX_DRAWN)).round().astype(int)]
    return trials[(trials["role"] != "") | trials.index.isin(kept.index)]


def _clients(study: StoredStudy, found: page_study.BeforeAndAfter | None) -> Section:
    if found is None:
        reason = "Scores per client are unknown, as they require FedAvg and another strategy in the log."
        return Section("clients", "Who gains, who loses", missing=(reason,))
    table, names = found
    name = study.score_measure.name
    caption = (
        f"{name[:1].upper()}{name[1:]} of each client in the last round, mean over {int(table['seeds'].max())} "
        f"seed{'s' if table['seeds'].max() > 1 else ''}: grey with {names[0]}, blue with {names[1]}, "
        "red where the score is lower."
    )
    named_table = table.assign(client=[study.names.client(int(client)) for client in table["client"]])
    picture = Picture("client-scores", caption, charts.client_scores(named_table, names, name))
    return Section("clients", "Who gains, who loses", (losers_sentence(study, found),), (picture,))


MOST_SEEDS = 8
"""Seeds of a table of scores."""


def _confirmation(study: StoredStudy) -> Section:
    confirmation = study.confirmation
    if confirmation is None:
        return Section("confirmation", "Confirmation", missing=("Nothing was confirmed on fresh seeds.",))
    view = confirmation.view
    names = {"fedavg": "FedAvg", "tuned-fedavg": "FedAvg, tuned"}
    factor, difference, against = confirmation.measure.per_unit, confirmation.difference, confirmation.reference.role
    ends = ("mean", "low", "high", "here_low", "here_high")
    means = pd.DataFrame([[getattr(difference, end) for end in ends]], columns=list(ends))
    means = means.astype(float).mul(factor).assign(against=names[against])
    seeds = [
        {"against": names[against], "seed": str(seed), "difference": factor * value}
        for seed, value in zip(confirmation.seeds, difference.differences, strict=True)
    ]
    wider = "widened" if confirmation.design.same_rows else "new data"
    chart = charts.confirmed_difference(means, pd.DataFrame(seeds), confirmation.measure.unit, wider)
    caption = (
        f"Gain of {confirmation.candidates[0].name}. Thin line: 95 % interval {confirmation.design.wider_is}; thick "
        "line: for another run on these rows; diamond: mean; ticks: fresh seeds."
    )
    scores = {
        names.get(candidate.role, candidate.name): candidate.scores(view)
        for candidate in confirmation.candidates
        if len(candidate.scores(view)) == len(confirmation.seeds)
    }
    headings = ("configuration", *(f"seed {number}" for number in range(1, len(confirmation.seeds) + 1)), "mean")
    rows = [(name, *(f"{score:.4f}" for score in own), f"{sum(own) / len(own):.4f}") for name, own in scores.items()]
    table, pictures = Table(headings, rows), (Picture("confirmation", caption, chart),)
    shown = table if len(confirmation.seeds) <= MOST_SEEDS else None
    return Section("confirmation", "Confirmation", (confirmation.intervals_text,), pictures, shown)


def _cost(study: StoredStudy) -> Section:
    rows = [
        (part, str(cost.trainings), str(cost.rounds), decimal(round(cost.bytes)), seconds_text(cost.seconds))
        for phase, part in page_study.PARTS.items()
        if (cost := page_study.Cost.of(study, phase)).trainings
    ]
    if not rows:
        return Section("cost", "Cost", missing=("Nothing has been trained yet.",))
    headings = ("part", "trainings", "rounds", "sent and received", "time of trials")
    sentences = ("Cost of the study itself, on simulated clients; trials may have run in parallel.",)
    return Section("cost", "Cost", sentences, table=Table(headings, rows))


def _reproduction(study: StoredStudy) -> Section:
    command = command_of(study)
    missing = () if command else ("No command of this version reproduces it; config.json has the configuration.",)
    return Section(
        "reproduction",
        "How to reproduce",
        ("The same command with the same versions gives the same numbers, on any number of hosts.",),
        table=Table(("item", "value"), list(_identity(study)), ("value",)),
        missing=missing,
        code=command or "",
    )


def _identity(study: StoredStudy) -> Iterator[tuple[str, str]]:
    yield "configuration", str(study.claim["config_hash"])
    if "data_digest" in study.claim:
        yield "data", str(study.claim["data_digest"])
    yield "seed", f"{study.config.seed} (federation: {study.config.federation.seed})"
    if study.confirmation is not None:
        yield "fresh seeds", ", ".join(map(str, study.confirmation.seeds))
    yield "versions", ", ".join(f"{name} {version}" for name, version in study.claim.get("versions", {}).items())
    if study.facts.federation.source:
        yield "data source", study.facts.federation.source


SNIPPET = "window.vegaEmbed = vegaEmbed; window.vega = vega; window.vegaLite = vegaLite;"

SMALLEST = 500_000
"""Characters; less is no Vega."""


@cache
def vega_code() -> str:
    """Return JavaScript that defines `vegaEmbed` and is safe within a `<script>` element."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache_file = caches / "fedscout" / f"vega-{version('vl-convert-python')}.js"
    with suppress(OSError, ValueError):
        code = cache_file.read_text(encoding="utf-8")
        if len(code) > SMALLEST and cache_file.stat().st_uid == os.getuid():
            return code
    import vl_convert

    code = vl_convert.javascript_bundle(SNIPPET).replace("</script", "<\\/script").replace("<!--", "<\\!--")
    with suppress(OSError):  # only a cache
        write_atomically(cache_file, partial(Path.write_text, data=code, encoding="utf-8"))
    return code


TEMPLATE = "page.html.jinja"
POLICY_HERE = "POLICY-HERE"
CODE = {tag: re.compile(f"<{tag}>(.*?)</{tag}>", re.DOTALL) for tag in ("script", "style")}


def html_of(page: Page) -> str:
    """Return the HTML of a page."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    specifications = {picture.name: _specification(picture.chart) for picture in page.pictures}
    text = environment.get_template(TEMPLATE).render(
        policy=POLICY_HERE,
        page=page,
        specifications=specifications,
        looks={
            "dark": charts.chart_config(dark=True),
            "light": {**charts.chart_config(dark=False), "background": "transparent"},
        },
        vega=Markup(vega_code()),  # noqa: S704 - the library's own code, which holds no `</script`
    )
    # the policy allows only the page's own scripts and styles, by their digests; all other text is escaped
    digests = {
        tag: " ".join(
            f"'sha256-{b64encode(hashlib.sha256(code.encode()).digest()).decode()}'" for code in pattern.findall(text)
        )
        for tag, pattern in CODE.items()
    }
    sources = f"script-src {digests['script']}; style-src {digests['style']}; img-src data:"
    return text.replace(POLICY_HERE, f"default-src 'none'; {sources}", 1)


def _specification(chart: Any) -> dict[str, Any]:
    """Return the Vega-Lite specification of a chart with responsive width, unvalidated as validation is slow."""
    specification: dict[str, Any] = chart.properties(width="container").to_dict(validate=False)
    specification.pop("config", None)
    inline_values = [
        layer["data"]["values"]
        for layer in (specification, *specification.get("layer", ()))
        if "values" in layer.get("data", {})
    ]
    if sum(map(len, [*inline_values, *specification.get("datasets", {}).values()])) > charts.MANY_MARKS:
        specification["usermeta"] = {"renderer": "canvas"}
    return specification


REPORT = "report.html"

logger = logging.getLogger("fedscout")


def page_in(folder: Path) -> Page:
    """Return the page of a study's or a sweep's folder.

    Raises:
        LogError: If the folder holds neither.
    """
    if (folder / "sweep.json").is_file():
        from fedscout.experiments.reports.page_sweep import sweep_page

        return sweep_page(folder)

    return study_page(folder)


def write_report(folder: Path) -> Path:
    """Write the report of a study or a sweep into its folder.

    Raises:
        LogError: If the folder holds neither.
        EngineError: If it can't be written, for example because the disk is full.
    """
    GridFolder(folder).write_text(REPORT, html_of(page_in(folder)))
    return folder / REPORT


def report_of_finished(folder: Path) -> Path | None:
    """Write the report of a finished study or sweep; errors are logged, as the results are already saved.

    Returns:
        The file; None if it was not written.
    """
    try:
        return write_report(folder)
    except Exception as error:  # no error in a chart may end a finished study
        logger.warning("the report was not written (%s); fedscout report %s writes it", first_line(error), folder)
        return None


FIGURES = "figures"
WIDTH = 560
"""Pixels of a figure's plot, axes and legend beside it."""


def write_figures(folder: Path, file_format: charts.FileFormat, name: str | None = None) -> list[Path]:
    """Write the charts of a study or a sweep to files.

    Args:
        folder: Folder of the study or the sweep.
        file_format: Format of the files.
        name: Name of one chart; None writes all.

    Raises:
        LogError: If the folder holds neither.
        ConfigurationError: If there is no such chart.
        EngineError: If a file can't be written.
    """
    refuse_links(folder)
    pictures = {picture.name: picture for picture in page_in(folder).pictures}
    if name is not None and name not in pictures:
        names = ", ".join(pictures) or "none"
        raise ConfigurationError.of("--what", f"name a chart of {folder} ({names})", name)
    selected = pictures.values() if name is None else [pictures[name]]
    paths = []
    for picture in selected:
        content = charts.drawn(picture.chart.properties(width=WIDTH), file_format)
        file = f"{FIGURES}/{picture.name}.{file_format}"
        GridFolder(folder).write(file, partial(Path.write_bytes, data=content))
        paths.append(folder / file)
    return paths
