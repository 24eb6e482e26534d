"""`fedscout detect`: how the clients' data differ."""

from __future__ import annotations

from fedscout.experiments.cli.options import AsJson, ConfigFile, Out, Settings, Verbose, read_settings


def detect(
    settings: Settings = None,
    config_file: ConfigFile = None,
    out: Out = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Measure label skew, feature skew and outlier clients."""
    config = read_settings(settings, config_file, verbose)
    from fedscout.experiments.federations.description.dependent_rows import dependence_notes
    from fedscout.experiments.reports.columns_console import show_columns
    from fedscout.experiments.reports.console import out_console, show_json
    from fedscout.experiments.reports.details import show_federation, show_report
    from fedscout.experiments.reports.diagnosis_lines import show_diagnosis
    from fedscout.experiments.reports.progress import TrialProgress

    progress = TrialProgress()
    with progress.live():
        from fedscout.experiments.studies.workflow import run_detection

        federation, report = run_detection(config, progress.display(), verbose, out)
    if as_json:
        affected = list(federation.affected_clients)
        show_json({"report": report.model_dump(mode="json"), "affected_clients": affected})
        return
    console = out_console()
    show_federation(console, federation)
    show = show_report if verbose else show_diagnosis
    show(console, report)
    for note in dependence_notes(federation, config.seed, config.training.test_fraction):
        console.print(f"  {note}")
    show_columns(console, federation.facts, is_brief=True)
