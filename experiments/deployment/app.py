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

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from pprint import pformat
from string import Template
from typing import Any, Literal

from fedscout.engine.errors import ConfigurationError
from fedscout.engine.runtime.files import write_atomically
from fedscout.engine.text import shown
from fedscout.experiments.deployment.client import Agreement

Choice = Literal["rules", "search"]

AGREEMENT_FILE = "federation.json"
FEWEST_CLIENTS = 2
LONGEST_NAME = 32
"""Longest name of an app by Flower's rules; letters, digits and hyphens."""

PROJECT = Template("""\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "$title"
version = "1.0.0"
description = "$description"
license = "Apache-2.0"
dependencies = ["fedscout==$fedscout", "flwr$flwr"]

[tool.hatch.build.targets.wheel]
packages = ["$name"]

[tool.flwr.app]
publisher = "$publisher"

[tool.flwr.app.components]
serverapp = "$name.server_app:app"
clientapp = "$name.client_app:app"

[tool.flwr.app.config]
min-clients = $min_clients     # number of clients that must connect before the run starts
patience = 600.0     # seconds to wait for them
rounds = $rounds
round-timeout = 600.0  # seconds after which a round continues without clients that did not reply
out = $out  # folder on the server for reports, log, checkpoints and model; a second run resumes from it
""")

CLIENT = Template('''\
"""The client app: each SuperNode runs it on its own rows, which stay there."""

from pathlib import Path

from fedscout import client_app

app = client_app(Path(__file__).parent / "$agreement")
''')

SERVER = Template('''\
"""The driver: $summary"""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedscout import RealFederation

$constants
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    agreement = Path(__file__).parent / "$agreement"
    federation = RealFederation(grid, agreement, config["out"], round_timeout=config["round-timeout"])
    federation.wait_for(config["min-clients"], patience=config["patience"])
$steps
    print(f"accuracy by round: {[round(score, 4) for score in trial.round_accuracy]}")
    print(f"the model is in {federation.out}")
''')

WINNER = '    trial = federation.train(STRATEGY, rounds=config["rounds"])'
PROGRAM = Template("""\
    report = federation.detect()
    strategy = federation.choose(report, by="$choice", max_rounds=MAX_ROUNDS, max_bytes=MAX_BYTES)
    print(f"chosen: {strategy}")
    trial = federation.train(strategy, rounds=config["rounds"])""")

README = Template("""\
# $name

$summary Written by fedscout $fedscout.

To try the app in four terminals on one machine (`--insecure` disables encryption, so use it only with 127.0.0.1):

```
flower-superlink --insecure --disable-runtime-dependency-installation
flower-supernode --insecure --superlink 127.0.0.1:8000 --port 9094 --node-config '$first'
flower-supernode --insecure --superlink 127.0.0.1:8000 --port 9095 --node-config '$second'
flwr run . local --stream
```

`local` is a connection in `~/.flwr/config.toml`:

```
[superlink.local]
address = "127.0.0.1:8000"
insecure = true
```

Between machines, use Flower's TLS and node authentication: start the SuperLink with `--ssl-ca-certfile`,
`--ssl-certfile`, `--ssl-keyfile` and `--enable-supernode-auth`, each SuperNode with `--root-certificates` and
`--auth-supernode-private-key`, and register its public key by `flwr supernode register`.

A client's owner sets what the client may answer in a file, named by `policy="/path/policy.toml"` in `--node-config`
(docs/real_federation.md of fedscout). docs/privacy.md lists what leaves a client.
""")


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
    name, folder = check_new(folder), folder.absolute()
    strategy = program.strategy
    if strategy is None:
        summary = "measures how the clients' data differ, chooses a strategy and trains it."
        limits = f"{program.max_rounds}, {program.max_bytes}"
        constants = f"MAX_ROUNDS, MAX_BYTES = {limits}  # limits of a search; None means no limit\n"
        steps = PROGRAM.substitute(choice=program.choice)
    else:
        summary = f"trains {strategy['kind']}."
        constants = f"STRATEGY = {pformat(dict(strategy), sort_dicts=False)}\n"
        steps = WINNER
    simulated = agreement.encoding is None and agreement.kind != "image"
    nodes = ["partition-id=0", "partition-id=1"] if simulated else ['data="/path/of/a.csv"', 'data="/path/of/b.csv"']
    values = {
        "name": name,
        "title": name.replace("_", "-"),
        "summary": summary,
        "description": summary[0].upper() + summary[1:-1],
        "publisher": "fedscout",
        "fedscout": version("fedscout"),
        "flwr": ">=1.41,<1.42",
        "agreement": AGREEMENT_FILE,
        "min_clients": program.min_clients,
        "out": json.dumps(f"{name}-out"),
        "rounds": agreement.config.training.num_rounds,
        "constants": constants,
        "steps": steps,
        "first": nodes[0],
        "second": nodes[1],
    }
    files = {
        "pyproject.toml": PROJECT.substitute(values),
        "README.md": README.substitute({**values, "summary": f"{summary[0].upper()}{summary[1:]}"}),
        f"{name}/__init__.py": "",
        f"{name}/{AGREEMENT_FILE}": agreement.text,
        f"{name}/server_app.py": SERVER.substitute(values),
        f"{name}/client_app.py": CLIENT.substitute(values),
    }
    try:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for file_name, text in files.items():
            write_atomically(folder / file_name, partial(Path.write_text, data=text))
    except OSError as error:
        raise ConfigurationError.of("--out", "be a folder that can be written", f"{folder}: {error}") from error
    return folder
