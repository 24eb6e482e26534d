"""Reading a report that a study or a detection has written, from a file that anybody may have changed."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from fedscout.detectors.report import HeterogeneityReport
from fedscout.engine.errors import DataError
from fedscout.engine.fault_text import details, fault_of
from fedscout.engine.runtime.json_file import read_json_object


def read_report(path: Path, asked_by: str = "--report") -> HeterogeneityReport:
    """Read a report: the file of a study or of `fedscout detect --out`, or what `--json` prints.

    Args:
        path: The file.
        asked_by: The option or key that names it, for messages.

    Raises:
        DataError: If it is none.
    """
    wanted = f"{asked_by} must be a report that `fedscout detect` or `fedscout run` wrote, got {path}"
    try:
        document = read_json_object(path)
        inner = document.get("report")
        return HeterogeneityReport.model_validate(document if inner is None else inner)
    except ValidationError as error:
        raise DataError(f"{wanted}: {_fault(error)}") from error
    except FileNotFoundError as error:
        raise DataError(f"{wanted}: there is no such file") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{wanted}: {' '.join(str(error).split())}") from error


def _fault(error: ValidationError) -> str:
    detail = details(error)[0]
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        return f"{key} is not a known key, as in a report of another version"
    return " ".join(f"{fault_of(key, detail)}".split())
