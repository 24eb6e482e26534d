"""The driver of a real federation, `fedscout.RealFederation`, and the Flower app in which it and the clients run.

```python
@app.main()
def main(grid: Grid, context: Context) -> None:
    federation = RealFederation(grid, "federation.json", out="out")
    federation.wait_for(2)
    strategy = federation.choose(federation.detect())
    print(federation.train(strategy).rounds["accuracy"][-1])
```

The folder `out` receives the report, the Parquet log of the training, the log of a search in a subfolder, the
checkpoints, and the model. A server that is restarted after a crash resumes from it. Clients keep their numbers by
their names (`clients.json`). Trials run one after the other, as a client's device handles one task at a time.

`fedscout app` writes an app for `flwr run`, whose `ServerApp` uses the driver:

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from pprint import pformat
from typing import Any, Literal

import numpy as np
from flwr.serverapp import Grid
from pydantic import TypeAdapter

from fedscout.detectors import HeterogeneityReport
from fedscout.detectors.report import verdicts
from fedscout.engine.client.host import ClientHost
from fedscout.engine.data.client import Partition
from fedscout.engine.errors import ConfigurationError, LogError, TrialError
from fedscout.engine.messages.calls import FederationFacts, Session
from fedscout.engine.messages.keys import BYTES_A_VALUE
from fedscout.engine.nodes.grid import Member, NodeGrid, NodeRoster
from fedscout.engine.nodes.wire import Greeting, Introduction, Wire, model_digest
from fedscout.engine.runtime.files import read_json_object, write_atomically
from fedscout.engine.text import reading_document, shown
from fedscout.engine.trials.checkpoint import CheckpointStore
from fedscout.engine.trials.log import TrialLog
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.runner import LocalRunner, Progress
from fedscout.engine.trials.trial import run_trial
from fedscout.experiments.config import StudyConfig, planned_trials
from fedscout.experiments.deployment.client import Agreement, wire
from fedscout.experiments.studies.result import REPORT_FILE, advised, read_claim, read_result
from fedscout.experiments.studies.run_folder import RunFolder, open_run_folder
from fedscout.experiments.studies.workflow import measure, stored_report, study_facts
from fedscout.experiments.text import visible_line
from fedscout.experiments.trained import what_is_kept, write_model, write_rounds
from fedscout.search.client_settings import ClientSettingsConfig
from fedscout.search.ledger import Ledger, StudyEvents, StudyFacts
from fedscout.search.recommenders.diagnosis import diagnose
from fedscout.search.recommenders.rules import recommend_by_rules
from fedscout.search.study import context_of, run_study, study_space
from fedscout.strategies import parse_strategy


@dataclass
class NodeRunner(LocalRunner):
    """A `TrialRunner` over nodes.

    Attributes:
        host: The driver's own data and model.
        store: Checkpoint store.
        roster: The clients.
        wire: Serializer of messages.
        terms: Digest of the agreement.
        tell: Called with a line of progress.
    """

    host: ClientHost
    store: CheckpointStore
    roster: NodeRoster
    wire: Wire
    terms: str
    tell: Callable[[str], object]

    @property
    def facts(self) -> FederationFacts:
        """Current facts of the federation."""
        return self.grid(Session()).facts

    @property
    def num_hosts(self) -> int:
        """Number of hosts, one per client."""
        return len(self.roster.members)

    def grid(self, session: Session, trial: str = "") -> NodeGrid:
        """Return a grid, for messages outside a trial or for a trial of this key."""
        return NodeGrid(self.roster, self.host, self.wire, session, trial, self.terms)

    def run(self, batch: Sequence[TrialSettings], progress: Progress | None = None) -> Iterator[tuple[int, Trial]]:
        """Yield the trials in order."""
        for position, settings in enumerate(batch):

            def on_round(done: int, of: TrialSettings = settings) -> None:
                self.tell(f"{of.phase} {of.strategy.label}: round {done} of {of.num_rounds}")
                if progress is not None:
                    progress({of.key: done})

            grid = self.grid(settings.session, settings.checkpoint)
            yield position, run_trial(settings, grid, self.store, on_round)


def winner_of(folder: Path) -> tuple[StudyConfig, dict[str, Any]]:
    """Return a finished study's configuration and recommendation: kind, parameters, client learning rate.

    The recommendation is the study's pick if it was confirmed to be better, else the reference, such as FedAvg at its
    tuned rate; without a confirmation, it is the best trial of the search.

    Raises:
        ConfigurationError: If the study's table of client settings can't be read.
        LogError: If there is no finished study, its table has changed, or all of its trainings failed.
    """
    claim, config = read_claim(folder)
    result = read_result(folder)
    if result is None:
        raise LogError.of("--from", "be the folder of a finished study (fedscout run --out)", folder)
    if "client_settings" in claim:
        with reading_document(folder / "config.json", LogError, "be of a study"):
            table = ClientSettingsConfig.model_validate(claim["client_settings"])
        if table.identity() != claim["config"].get("client_settings"):
            raise LogError.of(table.path, "be the table of client settings that the study used, but has changed")
        config = config.model_copy(update={"client_settings": table})
    strategy = advised(result.confirmation, result.best, config.training.learning_rate)
    if strategy is None:
        raise LogError.of(folder, "hold a study with a completed training")
    return config, strategy


CLIENTS_FILE = "clients.json"
SEARCH = "search"
"""Folder of a search's log, inside that of the training."""

GREETING_SECONDS = 120.0

print_at_once = partial(print, flush=True)
"""Flower forwards printed lines to `flwr log`."""


class RealFederation:
    """The clients that a Flower grid reaches, with the operations on them.

    Args:
        grid: Flower's grid, as passed to a `ServerApp`.
        agreement: File of the agreement, which defines the data format and the model.
        out: Output folder; one that holds an earlier run of this federation is resumed.
        round_timeout: Seconds after which a round continues without the clients that did not answer.
        tell: Called with a line of progress.

    Raises:
        ConfigurationError: If the agreement can't be read.
    """

    def __init__(
        self,
        grid: Grid,
        agreement: str | Path,
        out: str | Path,
        round_timeout: float = 600.0,
        tell: Callable[[str], object] = print_at_once,
    ) -> None:
        self.agreement = Agreement.read(Path(agreement))
        self.out = Path(out).absolute()
        training = self.agreement.config.training.model_copy(update={"round_timeout_seconds": round_timeout})
        self._config = self.agreement.config.model_copy(update={"training": training})
        self._tell = tell
        self._wire = wire()
        self._server = ClientHost(self.agreement.without_clients(), {})
        asks_rows = self.agreement.settings is None
        greeting = Greeting(asks_rows=asks_rows, terms=self.agreement.digest)
        self._roster = NodeRoster(grid, self._wire, model_digest(self._server.facts()), greeting, GREETING_SECONDS)

    def wait_for(self, at_least: int, patience: float = 600.0) -> int:
        """Wait for clients and return how many are connected.

        Args:
            at_least: Minimum number of clients.
            patience: Timeout in seconds.

        Raises:
            DataError: If fewer clients connect in time.
        """
        with self._folder() as folder:
            self._roster.members = [Member(None, introduction) for introduction in _known_clients(folder)]
            self._roster.meet(at_least, patience)
            self._note_clients(folder)
        connected = [member for member in self._roster.members if member.node is not None]
        names = ", ".join(member.introduction.name for member in connected)
        self._tell(visible_line(f"{len(connected)} clients are connected: {names}"))
        return len(connected)

    def detect(self) -> HeterogeneityReport:
        """Return the heterogeneity report; clients are queried unless a report is stored.

        Raises:
            DataError: If no client answers.
        """
        with self._folder() as folder:
            report = stored_report(folder)
            if report is None:
                self._tell("querying the clients about how their data differ")
                report = measure(self._runner(folder), self._config, self.agreement.names)
                folder.write_json(REPORT_FILE, report.model_dump(mode="json"))
        for verdict in verdicts(report):
            self._tell(visible_line(verdict.sentence))
        return report

    def choose(
        self,
        report: HeterogeneityReport,
        by: Literal["rules", "search"] = "rules",
        max_rounds: int | None = None,
        max_bytes: int | None = None,
    ) -> dict[str, Any]:
        """Return a strategy for these clients, in the form that `train` takes.

        Args:
            report: Heterogeneity report.
            by: `rules` needs no training round; `search` searches and confirms as the study's configuration says, and
                returns the reference if its pick is not confirmed.
            max_rounds: Maximum number of rounds of the search, including its confirmation.
            max_bytes: Maximum bytes of its messages, down and up, over all clients.

        Raises:
            ConfigurationError: If the configured search exceeds a limit.
            TrialError: If every training of the search failed.
        """
        with self._folder(SEARCH) as folder:
            facts = self._facts()
            if by == "rules":
                diagnosis = diagnose(report, self.agreement.feature_names)
                context = context_of(study_space(self._config.search, facts), facts, diagnosis)
                recommendation = recommend_by_rules(context)
                for reason in recommendation.reasons:
                    self._tell(visible_line(f"{recommendation.spec}: {reason.explanation} [{reason.source}]"))
                return {"kind": recommendation.spec.kind, **recommendation.spec.parameters()}
            self._refuse_costs(max_rounds, max_bytes)
            outcome = run_study(self._config.search, self._ledger(folder, facts), report)
        strategy = advised(outcome.confirmation, outcome.best, self._config.training.learning_rate)
        if strategy is None:
            raise TrialError("every training of the search failed; see the log for the errors")
        if outcome.confirmation is not None:
            self._tell(visible_line(outcome.confirmation.sentence))
        return strategy

    def train(self, strategy: Mapping[str, Any], rounds: int | None = None) -> Trial:
        """Train a strategy, from its checkpoint if there is one, and write the model and its rounds.

        Args:
            strategy: Kind and parameters.
            rounds: Number of rounds, in place of the study's.

        Raises:
            StrategyError: If it does not fit these clients, or no parameters are shared.
            TrialError: If the training failed.
        """
        with self._folder() as folder:
            facts = self._facts()
            facts = facts if rounds is None else replace(facts, num_rounds=rounds)
            ledger = self._ledger(folder, facts)
            spec = parse_strategy(dict(strategy), facts.cohort)
            settings = replace(facts.trial("train", spec), keep_model=True)
            kept = what_is_kept(spec, self._server.facts().layout) or ""
            if kept:
                self._tell(visible_line(f"note: {kept}"))
            (trial,) = ledger.run([settings])
            self._note_clients(folder)
            if trial.status != "completed":
                raise TrialError(f"the training failed: {trial.error}")
            write_rounds(folder.path, trial)
            if trial.vector is not None:  # it is not in the log; what an earlier run has written stays
                write_model(folder.path, self.agreement, trial.vector)
        for note in trial.notes:
            if note not in kept:  # which was shown already
                self._tell(visible_line(f"note: {note}"))
        return trial

    def _folder(self, below: str = "") -> AbstractContextManager[RunFolder]:
        return open_run_folder(self.out / below, self.agreement.config, self.agreement.digest)

    def _runner(self, folder: RunFolder) -> NodeRunner:
        store = CheckpointStore(folder.checkpoints, every_rounds=1)  # a round of real clients is worth more than a file
        return NodeRunner(self._server, store, self._roster, self._wire, self.agreement.digest, self._tell)

    def _facts(self) -> StudyFacts:
        sizes = [member.introduction.num_rows for member in self._roster.members]
        if not sizes:
            raise ConfigurationError.of("wait_for", "be called first, so that clients can connect")
        described = replace(
            self.agreement.without_clients(),
            partition=Partition(np.empty(0, np.int64), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)),
        )
        facts = study_facts(self._config, described)
        layers = self._server.facts().layout.layers
        cohort = replace(facts.cohort, layers=layers, server_rows=None, server_labels=False, has_clock=False)
        session = replace(facts.session, client_table=self.agreement.settings)
        config_digest = self.agreement.config.digest()  # of the folder, whatever time a round may take
        return replace(
            facts,
            cohort=cohort,
            session=session,
            data_digest=self.agreement.digest,
            data_origin=None,
            config_hash=config_digest,
        )

    def _ledger(self, folder: RunFolder, facts: StudyFacts) -> Ledger:
        log = TrialLog(folder.path)
        return Ledger(facts, self._runner(folder), log, StudyEvents())

    def _note_clients(self, folder: RunFolder) -> None:
        folder.write_json(CLIENTS_FILE, {"clients": [asdict(member.introduction) for member in self._roster.members]})

    def _refuse_costs(self, max_rounds: int | None, max_bytes: int | None) -> None:
        """Check that the search stays within the limits.

        Raises:
            ConfigurationError: If it exceeds one; the message states the cost.
        """
        config, num_clients = self._config, len(self._roster.members)
        num_trials, rounds_less = planned_trials(config)
        num_rounds = num_trials * config.training.num_rounds - rounds_less
        bytes_per_round = (
            2 * BYTES_A_VALUE * self._server.facts().layout.size * config.training.num_sampled(num_clients)
        )
        advice = "reduce search.budget, search.confirmation_seeds or training.num_rounds, or choose by rules"
        if max_rounds is not None and num_rounds > max_rounds:
            raise ConfigurationError.of("the search", f"take at most {max_rounds} rounds", num_rounds, advice)
        if max_bytes is not None and num_rounds * bytes_per_round > max_bytes:
            raise ConfigurationError.of(
                "the search", f"take at most {max_bytes:,} bytes", f"{num_rounds * bytes_per_round:,}", advice
            )


def _known_clients(folder: RunFolder) -> list[Introduction]:
    """Return the clients of an earlier run, by number.

    Raises:
        LogError: If their file is invalid.
    """
    path = folder.path / CLIENTS_FILE
    if not path.exists():
        return []
    with reading_document(path, LogError, "list the clients of an earlier run"):
        return TypeAdapter(list[Introduction]).validate_python(read_json_object(path).get("clients"), strict=False)


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
    """Return the name of an app, which is its folder's; the folder must be new or empty.

    Raises:
        ConfigurationError: If the name is invalid, or the folder is not empty.
    """
    folder = folder.absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError.of("--out", "be a new or empty folder", folder)
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
