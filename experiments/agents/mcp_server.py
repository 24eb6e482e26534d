"""The program as tools of the Model Context Protocol, over standard input and output.

Each tool is a command of the command line with `--json`, run as a process of its own: so its answers, limits and errors
are those of that command, and standard output is the protocol's alone. https://modelcontextprotocol.io
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import wraps
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from fedscout.engine.errors import Fault, LogError, UserError
from fedscout.engine.runtime.json_file import read_json_object
from fedscout.engine.trials.trial_log import read_columns
from fedscout.experiments.agents.allowed_settings import allowed_config, folder_below
from fedscout.experiments.agents.started_studies import StartedStudies
from fedscout.experiments.studies.run_folder import stored_claim

TRIAL_FACTS = ("trial", "phase", "generation", "strategy", "parameters", "seed", "status", "fitness", "error")
USUAL_SECONDS = 600.0
Seconds = Annotated[
    float, Field(gt=0, le=86_400, allow_inf_nan=False, description="The command is ended when it takes longer.")
]
INSTRUCTIONS = (
    "fedscout chooses the federated-learning strategy for clients whose data differ. Settings are key=value, as in "
    "federation.dataset=clients.csv, federation.label=outcome, federation.client_column=hospital, seed=1; `keys` lists "
    "them all. Begin with `detect`, which takes seconds; `recommend` needs no trial; `start_study` searches and "
    "confirms, and may take minutes: ask `follow_study` until its state is finished, then `read_result`."
)


def mcp_server(root: Path, own_code: bool = False) -> MCPServer[Any]:
    """Return the server.

    Args:
        root: Commands run here, and files that they read or write lie below.
        own_code: Whether settings may name code by import path.
    """
    studies = StartedStudies(root)

    @asynccontextmanager
    async def ends_with_the_server(_: MCPServer[Any]) -> AsyncIterator[None]:
        try:
            yield
        finally:
            studies.close()

    server: MCPServer[Any] = MCPServer(
        "fedscout",
        instructions=INSTRUCTIONS,
        version=version("fedscout"),
        lifespan=ends_with_the_server,
        log_level="WARNING",
    )
    for tool in _tools(studies, own_code):
        server.add_tool(_told(tool), structured_output=False)
    return server


def _tools(studies: StartedStudies, own_code: bool) -> Iterator[Callable[..., Any]]:
    root = studies.root

    def checked(settings: list[str]) -> list[str]:
        allowed_config(settings, root, own_code)
        return settings

    def answer(command: str, settings: list[str], max_seconds: float = USUAL_SECONDS) -> Any:
        return studies.answer(command, *checked(settings), "--json", max_seconds=max_seconds)

    def describe(settings: list[str], max_seconds: Seconds = USUAL_SECONDS) -> Any:
        """What the federation is and how its clients differ, as who holds all rows sees it. Nothing is trained."""
        return answer("describe", settings, max_seconds)

    def detect(settings: list[str], max_seconds: Seconds = USUAL_SECONDS) -> Any:
        """Label skew, feature skew and outlier clients, each with verdict, flagged clients and false-alarm rate."""
        return answer("detect", settings, max_seconds)

    def recommend(settings: list[str], max_seconds: Seconds = USUAL_SECONDS) -> Any:
        """A strategy with its parameters and the grounds for it, by rules from the diagnosis; no trial is run."""
        return answer("recommend", settings, max_seconds)

    def strategies(settings: list[str], max_seconds: Seconds = USUAL_SECONDS) -> Any:
        """The strategies that can be chosen for such a federation, as a JSON schema of parameters and ranges."""
        return answer("strategies", settings, max_seconds)

    def keys() -> Any:
        """Every key of the configuration, with its default and what it means."""
        return answer("keys", [])

    def start_study(settings: list[str], folder: str) -> dict[str, Any]:
        """Detect, search and confirm in the background. The same settings and folder go on where it was stopped.

        Args:
            settings: Each key=value.
            folder: For the log and the result, below the server's.
        """
        place = folder_below(root, folder)
        studies.start("run", checked(settings), place)
        return studies.state(place)

    def follow_study(folder: str) -> dict[str, Any]:
        """How a study stands: running, finished, failed or stopped; finished trials, the best so far, last words."""
        place = folder_below(root, folder)
        known = [trial for trial in _trials(place) if trial["status"] == "completed"]
        searched = [trial for trial in known if trial["phase"] in ("baseline", "search")]
        best = max(searched, key=lambda trial: float(trial["fitness"]), default=None)
        return {**studies.state(place), "num_trials": len(known), "best_so_far": best}

    def stop_study(folder: str) -> dict[str, Any]:
        """End a study that runs here. Its trials are kept, and start_study goes on from them."""
        place = folder_below(root, folder)
        studies.stop(place)
        return studies.state(place)

    def read_trials(folder: str) -> dict[str, list[dict[str, Any]]]:
        """The trials of a study so far: phase, strategy, parameters, seed, fitness, and why one failed."""
        return {"trials": _trials(folder_below(root, folder))}

    def read_result(folder: str) -> Any:
        """The verdict of a finished study: what to use, its gain on FedAvg with a 95 % interval, diagnosis, winner."""
        return _result(folder_below(root, folder))

    yield from (describe, detect, recommend, strategies, keys)
    yield from (start_study, follow_study, stop_study, read_trials, read_result)


def _trials(folder: Path) -> list[dict[str, Any]]:
    """Return the trials of the log so far, by number, but for those that can't be read."""
    rows, _ = read_columns(folder / "trials", TRIAL_FACTS, (stored_claim(folder) or {}).get("config_hash"))
    return [{name: _json_number(value) for name, value in row.items()} for row in rows]


def _json_number(value: Any) -> Any:
    """Return a value for JSON, which knows no NaN."""
    return None if isinstance(value, float) and not isfinite(value) else value


def _result(folder: Path) -> dict[str, Any]:
    """Return what decides of `result.json`, without trials and configuration."""
    try:
        result = read_json_object(folder / "result.json")
    except (OSError, ValueError) as error:
        raise LogError(Fault("the folder", "hold a finished study", folder.name)) from error
    wanted = (
        "federation",
        "best",
        "baseline",
        "tuned_baseline",
        "confirmation",
        "report",
        "advice",
        "recommendation",
        "trainings",
    )
    return {name: result[name] for name in wanted if name in result}


def _told(tool: Callable[..., Any]) -> Callable[..., Any]:
    """Return a tool, of the same signature, that tells the agent what is wrong with its call, and nothing else."""

    @wraps(tool)
    def telling(*given: Any, **named: Any) -> Any:
        try:
            return tool(*given, **named)
        except UserError as error:
            raise ToolError("\n".join(error.faults)) from None
        except OSError as error:
            raise ToolError(f"{error.filename} can't be used as a path: {error.strerror}") from None

    return telling
