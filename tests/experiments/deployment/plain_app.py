"""A Flower app that needs nothing but Flower: clients say which of the federation they are, the server prints it."""

from __future__ import annotations

from pathlib import Path

PROJECT = """\
[project]
name = "plainapp"
version = "0.1.0"
description = "Asks every node for its number"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "tests"
[tool.flwr.app.components]
serverapp = "plainapp.server_app:app"
clientapp = "plainapp.client_app:app"
[tool.flwr.app.config]
rounds = 2
nodes = 2
seconds = 60.0
"""

CLIENT = """\
import time
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()


@app.train()
def train(message, context):
    print("TRAINS", flush=True)
    time.sleep(context.node_config.get("sleep", 0))
    answer = MetricRecord({"number": int(context.node_config["number"])})
    return Message(RecordDict({"answer": answer}), reply_to=message)
"""

SERVER = """\
import time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()


@app.main()
def main(grid, context):
    wanted = context.run_config
    while len(ids := sorted(grid.get_node_ids())) < wanted["nodes"]:
        time.sleep(0.2)
    for round_number in range(wanted["rounds"]):
        asked = [Message(RecordDict({"c": ConfigRecord({"r": round_number})}), node, "train") for node in ids]
        replies = list(grid.send_and_receive(asked, timeout=wanted["seconds"]))
        numbers = sorted(reply.content["answer"]["number"] for reply in replies if not reply.has_error())
        print("ROUND", round_number, numbers, flush=True)
"""


def write_plain_app(folder: Path) -> Path:
    """Write the app below a folder, and return where."""
    app = folder / "plain"
    (app / "plainapp").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "plainapp" / "__init__.py").write_text("")
    (app / "plainapp" / "client_app.py").write_text(CLIENT)
    (app / "plainapp" / "server_app.py").write_text(SERVER)
    return app
