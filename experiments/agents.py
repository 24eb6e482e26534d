"""An MCP server that exposes the command line as tools, over standard input and output.

Each tool of the Model Context Protocol (https://modelcontextprotocol.io) runs a command with `--json` in a process of
its own, so that results, limits and errors are those of the command, and standard output is reserved for the protocol.
Studies run in the background.

Agents' inputs are untrusted, as they may originate from a web page that the agent read. Settings are therefore limited
to `key=value` arguments and may not name code, addresses, or files outside the folder with which the server was
started.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import wraps
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from fedscout.engine.errors import ConfigurationError, Fault, LogError, UserError
from fedscout.engine.trials.log import read_columns
from fedscout.experiments.config import StudyConfig, flattened, load_config
from fedscout.experiments.models.request import is_import_path
from fedscout.experiments.studies.result import read_result
from fedscout.experiments.studies.run_folder import stored_claim
from fedscout.experiments.text import visible_line

SETTING = re.compile(r"[a-z][A-Za-z0-9_.]*=")
NAMED_ELSEWHERE = "hf:"
"""A data set of the Hugging Face hub, which is no path, where a key names a data set."""
DATASETS_ELSEWHERE = ("federation.dataset", "federation.server_dataset")


def allowed_config(settings: Sequence[str], root: Path, own_code: bool = False) -> StudyConfig:
    """Return the configuration of an agent's settings.

    Args:
        settings: `key=value` each.
        root: Folder that must contain all files.
        own_code: Whether import paths are allowed.

    Raises:
        ConfigurationError: With every fault.
    """
    malformed = [setting for setting in settings if not SETTING.match(setting)]
    if malformed:
        raise ConfigurationError([Fault("a setting", "be key=value", repr(setting)) for setting in malformed])
    config = load_config(settings)
    faults = [*_faults(config, root, own_code)]
    if faults:
        raise ConfigurationError(faults)
    return config


def folder_below(root: Path, name: str) -> Path:
    """Return the folder of that name below the root.

    Raises:
        ConfigurationError: If it is not below the root.
    """
    if name.isprintable() and not name.startswith("-") and _lies_below(root, name):
        folder = (root / name).resolve()
        if folder != root.resolve():
            return folder
    raise ConfigurationError.of("a folder", "lie below the folder of the server", repr(name))


def _faults(config: StudyConfig, root: Path, own_code: bool) -> Iterator[str]:
    for key, value in _texts(flattened(config.model_dump(mode="json"))):
        if key in ("engine.address", "recommender.base_url"):
            yield Fault(key, "be left out, as agents may not set a server", repr(value))
        elif key in DATASETS_ELSEWHERE and value.startswith(NAMED_ELSEWHERE):
            continue
        elif "://" in value:
            yield Fault(key, "not be an address, as agents may not set one", repr(value))
        elif is_import_path(value):
            if not own_code:
                yield f"{key} names code, which requires `fedscout mcp --own-code`, got {value!r}"
        elif not _lies_below(root, value):
            yield Fault(key, "lie below the folder of the server", repr(value))


def _texts(leaves: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in leaves.items():
        if isinstance(value, str):
            yield key, value
        elif isinstance(value, list):
            for item in value:
                yield from _texts(flattened(item, f"{key}.") if isinstance(item, Mapping) else {key: item})


def _lies_below(root: Path, value: str) -> bool:
    """Return whether a value, taken as a path, stays within the folder; any word may be a symbolic link."""
    try:
        return (root / value).resolve().is_relative_to(root.resolve())
    except (RuntimeError, ValueError):  # links in a circle; a character that no path has
        return False


COMMAND = (sys.executable, "-m", "fedscout.experiments.cli.main", "--end-with-input")
END_SECONDS = 20.0
"""A study that is ended closes its log and its processes first."""
LAST_LINES = 5


@dataclass
class StartedStudies:
    """The commands that a server runs, all in the server's folder and ended with the server.

    Attributes:
        root: Working directory of all commands.
        running: By folder, each study that was started here, including finished ones.
    """

    root: Path
    running: dict[Path, subprocess.Popen[Any]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stdin_pipe: tuple[int, int] = field(default_factory=os.pipe)
    """Standard input of all commands, and the end that is this process's alone."""

    def answer(self, *arguments: str, max_seconds: float) -> Any:
        """Return the JSON output of a command after it ends.

        Raises:
            UserError: With the command's error message, or if it exceeded its time limit and was ended.
        """
        with self._begun(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                document, error_output = process.communicate(timeout=max_seconds)
            except subprocess.TimeoutExpired:
                process.terminate()
                _wait_for(process)
                late = f"{arguments[0]} exceeded max_seconds={max_seconds:g} and was ended"
                raise UserError(late) from None
        if process.returncode != 0:
            lines = [line.removeprefix("fedscout: ") for line in error_output.splitlines() if line.strip()]
            raise UserError(lines[-LAST_LINES:] or [f"the command ended with code {process.returncode}"])
        return json.loads(document)

    def start(self, command: str, settings: Sequence[str], folder: Path) -> None:
        """Start or resume a study; its output is written to a log file beside its folder.

        Raises:
            UserError: If a study already runs there.
        """
        with self._lock:
            process = self.running.get(folder)
            if process is not None and process.poll() is None:
                raise UserError([f"a study is already running in {folder.name}; follow it or stop it first"])
            folder.parent.mkdir(parents=True, exist_ok=True)
            with open(_log_path(folder), "wb") as log_file:
                arguments = [command, *settings, "--out", str(folder), "--json"]
                self.running[folder] = self._begun(arguments, stdout=subprocess.DEVNULL, stderr=log_file)

    def _begun(self, arguments: Sequence[str], **output: Any) -> subprocess.Popen[Any]:
        """Return a new process that runs a command, in a session of its own, as a Ctrl-C is the server's."""
        words, stdin = [*COMMAND, *arguments], self._stdin_pipe[0]
        return subprocess.Popen(words, cwd=self.root, stdin=stdin, start_new_session=True, **output)  # noqa: S603

    def state(self, folder: Path) -> dict[str, Any]:
        """Return the state of a study (`running`, `finished`, `failed` or `stopped`) and its last output lines."""
        process = self.running.get(folder)
        code = None if process is None else process.poll()
        if process is not None and code is None:
            state = "running"
        elif code is not None and 0 < code < 128:  # also where an earlier study has left its result
            state = "failed"
        else:
            state = "finished" if (folder / "result.json").is_file() else "stopped"
        log_path = _log_path(folder)
        last_lines = log_path.read_text(errors="replace").splitlines()[-LAST_LINES:] if log_path.is_file() else []
        return {"state": state, "exit_code": code, "last_words": [visible_line(line) for line in last_lines]}

    def stop(self, folder: Path) -> None:
        """Stop a running study; its log is kept, and starting it again resumes from there."""
        process = self.running.get(folder)
        if process is None or process.poll() is not None:
            return
        process.terminate()
        _wait_for(process)

    def close(self) -> None:
        """Stop all commands simultaneously, as a client may kill a server that shuts down slowly."""
        os.close(self._stdin_pipe[1])
        for process in self.running.values():
            _wait_for(process)
        os.close(self._stdin_pipe[0])


def _wait_for(process: subprocess.Popen[Any]) -> None:
    """Wait for a terminated command, and kill it after a timeout."""
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _log_path(folder: Path) -> Path:
    """Return the path of a study's log file, whose name no other program uses."""
    return folder.with_name(f"{folder.name}.fedscout.log")


TRIAL_FACTS = ("trial", "phase", "generation", "strategy", "parameters", "seed", "status", "fitness", "error")
USUAL_SECONDS = 600.0
Seconds = Annotated[
    float, Field(gt=0, le=86_400, allow_inf_nan=False, description="Time limit of the command in seconds.")
]
COMMANDS = {
    "describe": "Describe the federation and how its clients differ, computed centrally from all rows.",
    "detect": "Detect label skew, feature skew and outlier clients: verdict, clients, false-alarm rate.",
    "recommend": "Recommend a strategy with parameters and reasons, by rules from the diagnosis; no trial is run.",
    "strategies": "List the strategies available for such a federation, as a JSON schema of parameters and ranges.",
}
"""Commands that are tools, with their descriptions."""

INSTRUCTIONS = (
    "fedscout chooses the federated-learning strategy for clients whose data differ. Settings are key=value, as in "
    "federation.dataset=clients.csv, federation.label=outcome, federation.client_column=hospital, seed=1; `keys` lists "
    "them all. Begin with `detect`, which takes seconds; `recommend` needs no trial; `start_study` searches and "
    "confirms, and may take minutes: call `follow_study` until its state is finished, then `read_result`."
)


def mcp_server(root: Path, own_code: bool = False) -> MCPServer[Any]:
    """Return the MCP server.

    Args:
        root: Working directory of commands, which must contain all files that they read or write.
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
        server.add_tool(_with_tool_errors(tool), structured_output=False)
    return server


def _tools(studies: StartedStudies, own_code: bool) -> Iterator[Callable[..., Any]]:
    root = studies.root

    def checked(settings: list[str]) -> list[str]:
        allowed_config(settings, root, own_code)
        return settings

    def command_tool(command: str, description: str) -> Callable[..., Any]:
        def run(settings: list[str], max_seconds: Seconds = USUAL_SECONDS) -> Any:
            return studies.answer(command, *checked(settings), "--json", max_seconds=max_seconds)

        run.__name__, run.__doc__ = command, description
        return run

    def keys() -> Any:
        """List every configuration key with its default and description."""
        return studies.answer("keys", "--json", max_seconds=USUAL_SECONDS)

    def start_study(settings: list[str], folder: str) -> dict[str, Any]:
        """Detect, search and confirm in the background. The same settings and folder resume a stopped study.

        Args:
            settings: key=value each.
            folder: For the log and the result, below the server's folder.
        """
        place = folder_below(root, folder)
        studies.start("run", checked(settings), place)
        return studies.state(place)

    def follow_study(folder: str) -> dict[str, Any]:
        """Return a study's state: running, finished, failed or stopped; finished trials, best so far, last output."""
        place = folder_below(root, folder)
        completed = [trial for trial in _trials(place) if trial["status"] == "completed"]
        searched = [trial for trial in completed if trial["phase"] in ("baseline", "search")]
        best = max(searched, key=lambda trial: float(trial["fitness"]), default=None)
        return {**studies.state(place), "num_trials": len(completed), "best_so_far": best}

    def stop_study(folder: str) -> dict[str, Any]:
        """Stop a study that runs here. Its trials are kept, and start_study resumes it."""
        place = folder_below(root, folder)
        studies.stop(place)
        return studies.state(place)

    def read_trials(folder: str) -> dict[str, list[dict[str, Any]]]:
        """Return the trials of a study so far: phase, strategy, parameters, seed, fitness, errors."""
        return {"trials": _trials(folder_below(root, folder))}

    def read_result(folder: str) -> Any:
        """Return the result of a study: recommendation, gain over FedAvg with 95 % interval, diagnosis, winner."""
        return _result(folder_below(root, folder))

    yield from (command_tool(command, description) for command, description in COMMANDS.items())
    yield from (keys, start_study, follow_study, stop_study, read_trials, read_result)


def _trials(folder: Path) -> list[dict[str, Any]]:
    """Return the logged trials so far, by number, without unreadable ones; numbers that are not finite are None."""
    rows, _ = read_columns(folder / "trials", TRIAL_FACTS, (stored_claim(folder) or {}).get("config_hash"))
    return [
        {name: None if isinstance(value, float) and not isfinite(value) else value for name, value in row.items()}
        for row in rows
    ]


RESULT_PARTS = {
    *("federation", "best", "baseline", "tuned_baseline", "confirmation", "report"),
    *("advice", "recommendation", "trainings"),
}


def _result(folder: Path) -> dict[str, Any]:
    """Return the main parts of a study's result, without trials and configuration."""
    if (result := read_result(folder)) is None:
        raise LogError.of("the folder", "hold a finished study", folder.name)
    return result.model_dump(mode="json", include=RESULT_PARTS, exclude_unset=True)


def _with_tool_errors(tool: Callable[..., Any]) -> Callable[..., Any]:
    """Return a tool of the same signature that reports user errors to the agent, and nothing else."""

    @wraps(tool)
    def telling(*given: Any, **named: Any) -> Any:
        try:
            return tool(*given, **named)
        except UserError as error:
            raise ToolError("\n".join(error.faults)) from None
        except OSError as error:
            raise ToolError(f"{error.filename} can't be used as a path: {error.strerror}") from None

    return telling
