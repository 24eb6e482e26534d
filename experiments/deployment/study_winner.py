"""What a study says to use, and the agreement that its clients would need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedscout.engine.errors import ConfigurationError, Fault, LogError
from fedscout.experiments.config.config_file import load_config
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.studies.stored_study import read_claim, read_result


def winner_of(folder: Path, settings: Sequence[str] = ()) -> tuple[StudyConfig, dict[str, Any]]:
    """Return a finished study's configuration, and what it says to use: kind, parameters and the clients' rate.

    That is its pick where the pick was confirmed to be better, else the reference, such as FedAvg at its tuned rate; of
    a study that confirmed nothing, the best of its search.

    Args:
        folder: Of the study.
        settings: `client_settings.…=…`, where it had a table of them: its folder holds the table's digest alone.

    Raises:
        ConfigurationError: If these are not the study's.
        LogError: If there is no finished study, or none of its trainings went through.
    """
    claim, known = read_claim(folder)
    result = read_result(folder)
    if result is None:
        raise LogError(Fault("--from", "be the folder of a finished study (fedscout run --out)", folder))
    config = _configuration(known, claim["config"].get("client_settings"), settings)
    strategy = advised(result.get("confirmation"), result.get("best"), config.training.learning_rate)
    if strategy is None:
        raise LogError(f"{folder} holds a study of which no training went through, so there is nothing to deploy")
    return config, strategy


def advised(
    confirmation: Mapping[str, Any] | None, best: Mapping[str, Any] | None, usual_rate: float
) -> dict[str, Any] | None:
    """Return what a study says to use: kind, parameters and the clients' rate; None if nothing went through.

    Args:
        confirmation: Its document, or None.
        best: Of the search, as a trial's summary.
        usual_rate: Of the study's clients, which need not be said.
    """
    chosen = best if confirmation is None else _upheld(confirmation)
    return None if chosen is None else _document(chosen, usual_rate)


def _configuration(config: StudyConfig, table: Any, settings: Sequence[str]) -> StudyConfig:
    """Return a study's configuration, of which its folder holds all but where a table of client settings lies."""
    if table is None and not settings:
        return config
    if not all(setting.startswith("client_settings.") for setting in settings):
        raise ConfigurationError("--from takes all settings from the study, but for client_settings; leave out others")
    given = load_config(settings, None).client_settings
    if table is None or given.kind is None or given.identity() != table:
        raise ConfigurationError(
            "client_settings must be the study's, got "
            + ("some where the study had none" if table is None else f"{' '.join(settings) or 'nothing'}")
        )
    return config.model_copy(update={"client_settings": given})


def _upheld(confirmation: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the contestant that the confirmation says to use."""
    pick, *others = confirmation["contestants"]
    found: Mapping[str, Any] = pick
    if confirmation["verdict"] != "better":
        found = next((one for one in others if one["role"] == confirmation["reference"]), pick)
    return found


def _document(chosen: Mapping[str, Any], usual_rate: float) -> dict[str, Any]:
    document = {"kind": chosen["strategy"], **chosen["parameters"]}
    if chosen["learning_rate"] != usual_rate:
        document["client_learning_rate"] = chosen["learning_rate"]
    return document
