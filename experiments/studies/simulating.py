"""`fedscout simulate`: a look-alike of a diagnosed federation, how near it came, and a file by which it is searched.

OUT/diagnosis.json     the report, as it was given
OUT/federation.yaml    what was configured, and the look-alike: an argument of every other command
OUT/report.json        what the same detection tells of the look-alike
OUT/comparison.json    both side by side, and what is not reproduced
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedscout.detectors import DetectionConfig, HeterogeneityReport
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, LogError
from fedscout.engine.runtime.atomic_file import json_text, not_written, write_atomically
from fedscout.engine.runtime.folder_lock import UNUSABLE
from fedscout.experiments.config.config_file import config_of, given_settings, laid_over
from fedscout.experiments.federations.look_alikes.diagnosed import read_diagnosed
from fedscout.experiments.studies.look_alike_comparison import Comparison, compare
from fedscout.experiments.studies.workflow import SILENT, Display, run_detection

DIAGNOSIS_FILE = "diagnosis.json"
FEDERATION_FILE = "federation.yaml"
REPORT_FILE = "report.json"
COMPARISON_FILE = "comparison.json"

PRIVACY = {"epsilon", "delta", "clip", "noise"}
"""Of detection: how the diagnosed counts came to hold noise, of which the look-alike needs no more."""


@dataclass(frozen=True)
class Simulated:
    """A look-alike.

    Attributes:
        federation: Without its rows.
        report: What detection tells of it.
        comparison: Beside the diagnosed one.
        folder: Where its files are.
    """

    federation: Federation
    report: HeterogeneityReport
    comparison: Comparison
    folder: Path

    @property
    def configuration(self) -> Path:
        """The file by which it is searched."""
        return self.folder / FEDERATION_FILE


def simulate(
    like: Path,
    settings: Sequence[str],
    config_file: Path | None,
    out: Path,
    display: Display = SILENT,
    verbose: bool = False,
) -> Simulated:
    """Build a look-alike, compare it with what was diagnosed, and write its files.

    Args:
        like: The report.
        settings: Arguments of the study that is to be run on it; the data set is the proxy.
        config_file: Under the arguments.
        out: Folder of the files, in place of those of an earlier look-alike.
        display: Told what happens.
        verbose: Whether Ray's and Flower's own messages are shown.

    Raises:
        UserError: If the report, an argument, the data or the folder can't be used; nothing is written then.
    """
    given = given_settings(settings, config_file)
    if "like" in (given.get("federation") or {}):
        raise ConfigurationError("federation.like must be left out where --like says it")
    diagnosed = read_diagnosed(like)
    given = {"detection": _detection(diagnosed.report.settings), **given}
    out = out.absolute()
    config = config_of(laid_over({"federation": {"like": str(like)}}, given))
    federation, report = run_detection(config, display, verbose)
    comparison = compare(diagnosed.report, report, federation.facts["like"]["notes"])
    content = like.read_text(encoding="utf-8")
    written = laid_over({"federation": {"like": str(out / DIAGNOSIS_FILE)}}, given)
    _write(
        out,
        {
            DIAGNOSIS_FILE: content,
            FEDERATION_FILE: _yaml(written),
            REPORT_FILE: json_text(report.model_dump(mode="json")),
            COMPARISON_FILE: json_text(comparison.model_dump(mode="json")),
        },
    )
    return Simulated(federation, report, comparison, out)


def _detection(settings: DetectionConfig) -> dict[str, Any]:
    """Return the thresholds and sizes of a detection that are not the usual ones."""
    usual = DetectionConfig().model_dump()
    return {
        name: value for name, value in settings.model_dump().items() if value != usual[name] and name not in PRIVACY
    }


def _yaml(settings: Mapping[str, Any]) -> str:
    import yaml

    kept = {name: group for name, group in settings.items() if group != {}}
    return yaml.safe_dump(kept, sort_keys=False, allow_unicode=True)


def _write(folder: Path, files: Mapping[str, str]) -> None:
    path = folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            path = folder / name
            write_atomically(path, partial(Path.write_text, data=text, encoding="utf-8"))
    except OSError as error:
        raise LogError(UNUSABLE.format(path=folder, reason=not_written(path, error))) from error
