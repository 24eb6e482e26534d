"""`fedscout search`: search and confirm without asking the detectors."""

from __future__ import annotations

from fedscout.experiments.cli.options import AsJson, ConfigFile, Out, Settings, Verbose
from fedscout.experiments.cli.run import TunedBaseline, study


def search(
    settings: Settings = None,
    config_file: ConfigFile = None,
    out: Out = None,
    as_json: AsJson = False,
    tuned_baseline: TunedBaseline = None,
    verbose: Verbose = False,
) -> None:
    """Search for the strategy and confirm the winner; as run, without the diagnosis."""
    study(settings, config_file, out, as_json, tuned_baseline, verbose, detection=False)
