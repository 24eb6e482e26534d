"""Pages of the site that are made when it is built: commands, keys, Python, notebooks, and files beside docs.

A hook of MkDocs (https://www.mkdocs.org/user-guide/configuration/#hooks): `on_files` adds the pages, so nothing that is
generated lies in the repository. Docstrings are Google's: what stands below `Args:`, `Attributes:`, `Returns:` and
`Raises:` becomes lists.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from pathlib import Path

import click
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).resolve().parent.parent
GALLERY = REPOSITORY / "gallery"
BESIDE_DOCS = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md", "cluster.yaml": "cluster.yaml"}
PYTHON = {
    "The interface": [f"fedscout.{name}" for name in ("Federation", "study", "train", "Study", "TrainedStrategy")],
    "What it gives": [
        "fedscout.read_trials",
        "fedscout.experiments.description.Description",
        "fedscout.experiments.description.ClientDescription",
        "fedscout.detectors.report.HeterogeneityReport",
        "fedscout.detectors.report.Finding",
        "fedscout.search.confirmation.confirmation.Confirmation",
        "fedscout.engine.trials.record.Trial",
    ],
    "A trained model": ["fedscout.load", "fedscout.TrainedModel"],
    "Real federations": ["fedscout.RealFederation", "fedscout.client_app"],
    "What one plugs in": [
        "fedscout.strategies.specification.StrategySpec",
        "fedscout.engine.contracts.algorithm.ClientAlgorithm",
        "fedscout.engine.messages.calls.SelectionPolicy",
        "fedscout.search.searcher.Searcher",
        "fedscout.engine.metrics.Metric",
    ],
}
SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises):$", re.MULTILINE)
QUOTED_HINT = re.compile(r": '([^']*)'")
"""An annotation as postponed evaluation keeps it."""

ENTRY = re.compile(r"^(\*{0,2}[\w.]+): (.*)", re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is generated to the files of the site."""
    pages = {
        "reference/commands.md": commands_page(),
        "reference/keys.md": keys_page(),
        "reference/python.md": python_page(),
        **{page: _without_folder((REPOSITORY / name).read_text()) for page, name in BESIDE_DOCS.items()},
        **{
            f"notebooks/{notebook.stem}.md": notebook_page(notebook)
            for notebook in (REPOSITORY / "docs" / "notebooks").glob("*.ipynb")
        },
    }
    reports = {f"reports/{name}.html": report.read_text() for name, report in _gallery_reports().items()}
    for path, text in {**pages, **reports}.items():
        files.append(File.generated(config, path, content=text))
    return files


def _gallery_reports() -> dict[str, Path]:
    """Return the reports of the gallery's studies that were run on this machine, by the study's name."""
    return {report.parent.name: report for report in sorted(GALLERY.glob("*/report.html"))}


def on_page_markdown(markdown: str, **_: object) -> str:
    """Lead links that are right in the repository to what stands for it on the site: files beside docs, notebooks.

    Below a command of the gallery that `make gallery` has run is a link to its report.
    """
    for name in _gallery_reports():
        link = f"[The report of this run](reports/{name}.html)"
        markdown = re.sub(rf"(--out gallery/{name}\n```\n)", rf"\1\n{link}\n", markdown)
    pages = re.sub(r"\]\((notebooks/\w+)\.ipynb\)", r"](\1.md)", markdown)
    return pages.replace("](../cluster.yaml)", "](cluster.yaml)")


def commands_page() -> str:
    """Return all commands with their arguments and options, as `--help` has them."""
    from fedscout.experiments.cli.program import app

    group = typer.main.get_command(app)
    parts = ["# Commands", "Made from the program itself; `fedscout COMMAND --help` says the same."]
    for name, command in _commands(group, "fedscout"):
        context = click.Context(command, info_name=name)
        usage = " ".join(["fedscout" if not command.params else "", *command.collect_usage_pieces(context)]).strip()
        parts += [
            f"## {name}",
            inspect.cleandoc(command.help or ""),
            f"```\n{name} {usage.removeprefix('fedscout ')}\n```",
        ]
        parts.append(_table("argument or option", [_parameter(parameter) for parameter in command.params]))
    return "\n\n".join(part for part in parts if part)


def keys_page() -> str:
    """Return all keys of the configuration, a section each."""
    from fedscout.experiments.cli.others import default_text
    from fedscout.experiments.config import known_keys

    parts = [
        "# Keys",
        "What `fedscout keys` prints, by section; [configuration](../configuration.md) says how they are given.",
    ]
    sections: dict[str, list[tuple[str, ...]]] = {}
    for name, key in known_keys().items():
        row = (f"`{name}`", default_text(key), key.description or "")
        sections.setdefault(name.partition(".")[0] if "." in name else "study", []).append(row)
    for section, rows in sections.items():
        parts += [f"## {section}", _table("key | default", rows)]
    return "\n\n".join(parts)


def python_page() -> str:
    """Return the Python interface from its signatures and docstrings."""
    parts = ["# Python", "Made from the code; [From Python](../python.md) shows how it is used."]
    for title, names in PYTHON.items():
        parts.append(f"## {title}")
        for name in names:
            module, _, attribute = name.rpartition(".")
            parts += _documented(attribute, getattr(import_module(module), attribute), module, "###")
    return "\n\n".join(parts)


def notebook_page(file: Path) -> str:
    """Return a notebook's cells as a page."""
    parts = []
    for cell in json.loads(file.read_text())["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    title, *rest = parts
    return "\n\n".join([title, f"The notebook itself: [{file.name}]({file.name}).", *rest])


def _commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    for sub_name, sub in command.commands.items():
        yield from _commands(sub, f"{name} {sub_name}")


def _parameter(parameter: click.Parameter) -> tuple[str, ...]:
    if isinstance(parameter, click.Option):
        names = ", ".join(f"`{option}`" for option in [*parameter.opts, *parameter.secondary_opts])
    else:
        names = f"<code>{parameter.make_metavar(click.Context(click.Command('')))}</code>"
    return names, getattr(parameter, "help", None) or ""


def _table(first_column: str, rows: list[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    lines = [f"| {first_column} | meaning |", "| --- " * len(rows[0]) + "|"]
    return "\n".join(lines + [f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in rows])


def _documented(name: str, thing: object, module: str, level: str) -> Iterator[str]:
    """Yield heading, signature and docstring, and those of a class's own public methods."""
    yield f"{level} {name}"
    if module != "fedscout" and level == "###":
        yield f"`from {module} import {name}`"
    if inspect.isfunction(thing) or (inspect.isclass(thing) and "__init__" in vars(thing)):
        signature = str(inspect.signature(thing).replace(return_annotation=inspect.Signature.empty))
        plain = QUOTED_HINT.sub(r": \1", signature)
        yield f"```python\n{name}{plain}\n```"
    yield _as_markdown(inspect.getdoc(thing) or "")
    for member, method in vars(thing).items() if inspect.isclass(thing) else ():
        public = inspect.isfunction(method) or isinstance(method, property | cached_property)
        if public and not member.startswith("_") and method.__doc__:
            yield from _documented(f"{name}.{member}", method, module, f"{level}#")


def _as_markdown(docstring: str) -> str:
    """Return a Google docstring with its sections as lists."""
    text, *sections = SECTION.split(docstring)
    parts = [text.strip()]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        listed, _, after = inspect.cleandoc(f"\n{body}").partition("\n\n")
        entries = re.split(r"\n(?! )", listed)
        lines = [ENTRY.sub(r"- `\1`: \2", " ".join(entry.split())) for entry in entries]
        parts += [f"**{title}**", "\n".join(lines), after]
    return "\n\n".join(part for part in parts if part)


def _without_folder(text: str) -> str:
    """Lead links of a file at the repository's top to the pages of the site."""
    return text.replace("](docs/", "](")
