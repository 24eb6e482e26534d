"""A Flower app in a folder, for `flwr run`: the driver and the clients of a real federation.

```
FOLDER/
  pyproject.toml            what Flower reads; users edit its [tool.flwr.app.config]
  README.md                 the commands for this app
  NAME/federation.json      the agreement
  NAME/server_app.py        waits for the clients, trains
  NAME/client_app.py        the clients' side
```

The driver does not use Flower's `Strategy.start`, which does not support client state, loses its state with the
process, and does not evaluate between rounds. The clients also work with Flower's own strategies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from pprint import pformat
from typing import Any, Literal

from fedscout.engine.errors import ConfigurationError
from fedscout.engine.runtime.files import write_atomically
from fedscout.engine.text import shown
from fedscout.experiments.deployment.client import Agreement

Choice = Literal["rules", "search"]

AGREEMENT_FILE = "federation.json"
TEMPLATES = Path(__file__).parent / "templates"
FEWEST_CLIENTS = 2
LONGEST_NAME = 32
"""Longest name of an app by Flower's rules; letters, digits and hyphens."""


@dataclass(frozen=True)
class Program:
    """What the driver of an app does.

    Attributes:
        strategy: Strategy to train; None lets the driver detect and choose first.
        choice: How the driver chooses.
        max_rounds: Maximum number of rounds of a search.
        max_bytes: Maximum bytes of its messages.
        min_clients: Number of clients that must be connected before the driver starts.
    """

    strategy: Mapping[str, Any] | None = None
    choice: Choice = "rules"
    max_rounds: int | None = None
    max_bytes: int | None = None
    min_clients: int = FEWEST_CLIENTS


def check_new(folder: Path) -> str:
    """Return the name of an app from its folder, which must be new or empty.

    Raises:
        ConfigurationError: If the name is invalid, or the folder is not empty.
    """
    folder = folder.absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError.of("--out", "be a new or empty folder", folder)
    return app_name(folder)


def app_name(folder: Path) -> str:
    """Return the name of an app from its folder's name.

    Raises:
        ConfigurationError: If the name is invalid.
    """
    name = re.sub(r"[^a-z0-9]+", "_", folder.name.lower()).strip("_")
    if not name or not name[0].isalpha() or len(name) > LONGEST_NAME:
        raise ConfigurationError.of(
            "--out",
            f"be a folder whose name begins with a letter and has at most {LONGEST_NAME} "
            "letters and digits, as it is the name of the app",
            shown(folder.name),
        )
    return name


def write_app(folder: Path, agreement: Agreement, program: Program) -> Path:
    """Write an app and return its folder.

    Args:
        folder: New or empty folder.
        agreement: Agreement of driver and clients.
        program: What the driver does.

    Raises:
        ConfigurationError: If the folder is not empty, or can't be written.
    """
    import jinja2

    name, folder = check_new(folder), folder.absolute()
    strategy = program.strategy
    summary = (
        "measures how the clients' data differ, chooses a strategy and trains it."
        if strategy is None
        else f"trains {strategy['kind']}."
    )
    simulated = agreement.encoding is None and agreement.kind != "image"
    nodes = ["partition-id=0", "partition-id=1"] if simulated else ['data="/path/of/a.csv"', 'data="/path/of/b.csv"']
    values = {
        "name": name,
        "title": name.replace("_", "-"),
        "summary": summary,
        "description": summary[0].upper() + summary[1:-1],
        "fedscout": version("fedscout"),
        "agreement": AGREEMENT_FILE,
        "program": program,
        "strategy": None if strategy is None else pformat(dict(strategy), sort_dicts=False),
        "rounds": agreement.config.training.num_rounds,
        "nodes": nodes,
    }
    environment = jinja2.Environment(  # noqa: S701 - of text and Python, not HTML
        loader=jinja2.FileSystemLoader(TEMPLATES),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    files = {f"{name}/__init__.py": "", f"{name}/{AGREEMENT_FILE}": agreement.text}
    for template in environment.list_templates():
        file_name = template.removesuffix(".jinja")
        place = f"{name}/{file_name}" if file_name.endswith(".py") else file_name
        files[place] = environment.get_template(template).render(values)
    try:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for file_name, text in files.items():
            write_atomically(folder / file_name, partial(Path.write_text, data=text))
    except OSError as error:
        raise ConfigurationError.of("--out", "be a folder that can be written", f"{folder}: {error}") from error
    return folder
