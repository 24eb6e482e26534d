"""The federations on which choosers are compared: data sets × scenarios × numbers of clients, each trained in a second.

A federation is written as the arguments of any other command. Step sizes are part of a federation, too: a gain that
vanishes with another step size is the step size's, and a chooser can't rely on a good one.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, DataError, Fault, UserError
from fedscout.experiments.config.config_file import load_config
from fedscout.experiments.config.study_config import StudyConfig, check_searchable
from fedscout.experiments.federations.assembly.build_federation import build_federation

DEFAULTS = ("engine.grid=local",)
QUICK = ("training.num_rounds=12",)


@dataclass(frozen=True)
class FederationCase:
    """One federation of the battery.

    Attributes:
        name: For people; what makes it, without the groups of the keys.
        arguments: As for `fedscout run`.
        needs_files: Whether it reads files that are not part of the program.
    """

    name: str
    arguments: tuple[str, ...]
    needs_files: bool = False


def _case(data: str, dealt: str, clients: int, rate: float, files: bool = False, rounds: int = 30) -> FederationCase:
    key = "federation.partition.alpha" if dealt.replace(".", "").isdigit() else "federation.scenario"
    shown = f"Dirichlet {dealt}" if key.endswith("alpha") else dealt.replace("_", " ")
    arguments = (
        f"federation.dataset={data}",
        f"{key}={dealt}",
        f"federation.num_clients={clients}",
        f"training.learning_rate={rate}",
        f"training.num_rounds={rounds}",
    )
    return FederationCase(f"{data}, {shown}, {clients} clients, rate {rate:g}", arguments, files)


BATTERY: tuple[FederationCase, ...] = (
    _case("digits", "0.1", 10, 0.2),
    _case("digits", "0.1", 10, 0.05),
    _case("digits", "0.1", 20, 0.2),
    _case("digits", "0.5", 20, 0.05),
    _case("digits", "label_poisoning", 10, 0.2),
    _case("digits", "corrupted_client", 5, 0.1),
    _case("breast_cancer", "0.1", 10, 0.02),
    _case("breast_cancer", "label_skew", 4, 0.05),
    _case("breast_cancer", "noisy_labels", 6, 0.1),
    _case("wine", "0.1", 6, 0.02),
    _case("wine", "feature_skew", 4, 0.05),
    _case("wine", "label_poisoning", 5, 0.1),
    _case("bearing", "label_skew", 4, 0.2, files=True),
    _case("bearing", "feature_skew", 4, 0.1, files=True),
    _case("bearing", "label_poisoning", 4, 0.2, files=True),
    _case("wine_quality", "0.1", 10, 0.2, files=True, rounds=15),
)
QUICK_BATTERY = tuple(BATTERY[place] for place in (1, 6, 9))


def case_of(text: str) -> FederationCase:
    """Read a federation given by its arguments in one text.

    Raises:
        ConfigurationError: If the text holds no argument or can't be split.
    """
    try:
        arguments = tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigurationError(
            Fault("--federation", "be arguments such as federation.dataset=wine", repr(text))
        ) from error
    if not arguments:
        raise ConfigurationError(Fault("--federation", "be arguments such as federation.dataset=wine", "an empty text"))
    name = " ".join(argument.removeprefix("federation.").removeprefix("training.") for argument in arguments)
    return FederationCase(name, arguments)


@dataclass(frozen=True)
class ReadyCase:
    """A federation that is built; its arguments are all that were read, the defaults and the user's own included."""

    case: FederationCase
    arguments: tuple[str, ...]
    config: StudyConfig
    federation: Federation


def ready_case(case: FederationCase, settings: Sequence[str], quick: bool) -> ReadyCase:
    """Read and build a federation. The user's own settings win; if quick, its rounds are cut.

    Raises:
        UserError: If an argument is wrong, or the data can't be read or dealt so.
    """
    arguments = (*DEFAULTS, *case.arguments, *(QUICK if quick else ()), *settings)
    config = load_config(arguments)
    check_searchable(config)
    return ReadyCase(case, arguments, config, build_federation(config.federation, config.model))


def ready_cases(
    cases: Sequence[FederationCase], settings: Sequence[str], quick: bool
) -> tuple[list[ReadyCase], dict[str, str]]:
    """Build all federations before anything is trained.

    Returns:
        Those that are ready, and the reason of each whose files are missing.

    Raises:
        UserError: With every fault of the others.
    """
    ready: list[ReadyCase] = []
    missing: dict[str, str] = {}
    names = [case.name for case in cases]
    faults = [
        Fault("--federation", "be given once each", f"{name!r} twice") for name in {*names} if names.count(name) > 1
    ]
    for case in cases:
        try:
            ready.append(ready_case(case, settings, quick))
        except UserError as error:
            if case.needs_files and isinstance(error, DataError):
                missing[case.name] = str(error)
            else:
                faults += [f"{case.name}: {fault}" for fault in error.faults]
    if faults:
        raise ConfigurationError(faults)
    if not ready:
        raise ConfigurationError(f"at least one federation must be readable, got none: {'; '.join(missing.values())}")
    return ready, missing
