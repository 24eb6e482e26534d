"""What a study's folder says of itself, read by all who read it: its configuration, and its result.

Whoever may write to the folder can have edited it, or a copy may be half there; so both are held to a schema here, and
what does not fit is told in one line.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedscout.engine.errors import Fault, LogError
from fedscout.engine.fault_text import details
from fedscout.engine.runtime.json_file import read_json_object
from fedscout.experiments.config.config_keys import fault_text
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.studies.run_folder import RESULT_FILE, stored_claim


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")


class StoredFacts(_Part):
    """What is read of the federation's facts."""

    name: str = ""
    model: str = ""
    source: str = ""
    client_rows: tuple[int, ...] = ()
    class_names: tuple[str, ...] = ()
    client_names: tuple[str | int | float | bool, ...] = ()


class StoredTrial(_Part):
    """What is read of the summary of a trial."""

    strategy: str
    parameters: Mapping[str, Any]
    learning_rate: float


class StoredContestant(StoredTrial):
    """What is read of a contestant of a confirmation."""

    role: str


class StoredConfirmation(_Part):
    """What is read of a confirmation, but for a report, which reads all of it."""

    contestants: tuple[StoredContestant, ...] = Field(min_length=1)
    reference: str
    verdict: str


class StoredGround(_Part):
    """Why something was recommended."""

    because: str


class StoredModel(_Part):
    """The language model that recommended it."""

    model: str


class StoredRecommendation(_Part):
    """What is read of what a one-shot study was recommended."""

    name: str
    language_model: StoredModel | None
    grounds: tuple[StoredGround, ...] = Field(min_length=1)
    instead_of_model: str | None


class StoredResult(_Part):
    """What is read of `result.json`."""

    federation: StoredFacts = StoredFacts()
    dependence: tuple[str, ...] = ()
    affected_clients: tuple[int, ...] = ()
    best: StoredTrial | None = None
    confirmation: StoredConfirmation | None = None
    recommendation: StoredRecommendation | None = None


def read_result(folder: Path) -> dict[str, Any] | None:
    """Return a study's result as its document; None while there is none.

    Raises:
        LogError: If it can't be read, or is not as a study writes it.
    """
    path = folder / RESULT_FILE
    try:
        document = read_json_object(path)
        StoredResult.model_validate(document)
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise LogError(Fault(path, f"be a study's result, but {fault_text(details(error)[0])}")) from error
    except (OSError, ValueError) as error:
        raise LogError(Fault(path, f"be a study's result, but can't be read: {error}")) from error
    return document


def read_claim(folder: Path) -> tuple[dict[str, Any], StudyConfig]:
    """Return `config.json` and the configuration in it.

    Of a table of client settings the folder has the digest alone, so it is left out of the configuration.

    Raises:
        LogError: If the folder holds no study, or one of another version.
    """
    claim = stored_claim(folder)
    if claim is None:
        raise LogError(Fault("the folder", "hold a study", f"{folder} without a readable config.json"))
    told = {key: value for key, value in claim["config"].items() if key != "client_settings"}
    try:
        config = StudyConfig.model_validate(told)
    except ValidationError as error:
        raise LogError(Fault(folder, f"be a study of this version, but its {fault_text(details(error)[0])}")) from error
    return {**claim, "config": {**claim["config"], **config.identity()}}, config
