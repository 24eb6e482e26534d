"""`fedscout strategies`: what can be chosen, and from which ranges."""

from __future__ import annotations

from fedscout.experiments.cli.options import AsJson, ConfigFile, Settings, read_settings


def strategies(settings: Settings = None, config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """List the strategies with their parameters and ranges for a federation's number of clients.

    Those of the search space come first, then those that join it if search.strategies names them, then what may make
    pairs, and the policies that choose who trains. With strategy.kind=… and its parameters, also what is worth knowing
    of that one, such as the privacy that it costs.
    """
    config = read_settings(settings, config_file, verbose=False)
    from rich.text import Text

    from fedscout.engine.fault_text import listed
    from fedscout.experiments.cli.options import user_folders
    from fedscout.experiments.reports.console import out_console, plain_table, show_json
    from fedscout.experiments.studies.client_selection import own_selection
    from fedscout.experiments.studies.workflow import cohort_of
    from fedscout.search.study.study import planned_space
    from fedscout.strategies import (
        CHOSEN_BY_NAME_KINDS,
        CLIENT_KINDS,
        SELECTIONS,
        SERVER_RULE_KINDS,
        StrategyRow,
        parse_strategy,
        strategy_class,
    )

    user_folders()
    clients = config.federation.num_seen
    if clients is None:  # natural clients: the data tell
        from fedscout.experiments.federations.assembly.build_federation import build_federation

        clients = build_federation(config.federation, config.model).num_seen
    cohort = cohort_of(config, clients)
    own = own_selection(config)
    space = planned_space(config.search, cohort, selection=own)
    others = tuple(kind for kind in CHOSEN_BY_NAME_KINDS if kind not in {*space.kinds, *space.absent})
    impossible = {kind: reason for kind in others if (reason := strategy_class(kind).unavailable(cohort))}
    possible = tuple(kind for kind in others if kind not in impossible)
    unnamed = config.search.model_copy(update={"strategies": possible, "customs": ()})
    by_name = planned_space(unnamed, cohort, selection=own) if possible else None
    notes = parse_strategy(config.strategy, cohort).notes(cohort) if config.strategy else []
    if as_json:
        schemas = {"schema": space.json_schema(), "by_name": by_name and by_name.json_schema()}
        pairs = {"server_rules": SERVER_RULE_KINDS, "clients": CLIENT_KINDS}
        choices = {"selections": {kind: each.model_json_schema() for kind, each in SELECTIONS.items()}}
        shown = {"num_clients": clients, "num_sampled": cohort.num_sampled, **schemas, "pairs": pairs, **choices}
        show_json({**shown, "notes": notes} if config.strategy else shown)
        return
    console = out_console()
    console.print(f"{clients} clients, {cohort.num_sampled} of them train in a round")
    table = plain_table("strategy", "parameter", "range of a search", "meaning")
    absent = [StrategyRow(kind, "", "", unavailable=reason) for kind, reason in impossible.items()]
    for row in (*space.describe(), *(by_name.describe() if by_name else ()), *absent):
        if row.unavailable:
            table.add_row(row.name, "", "", f"not here: {row.unavailable}")
            continue
        searched = "" if row.name in space.kinds else f" Joins a search by search.strategies=[{row.name}]."
        table.add_row(Text(row.name, style="bold"), "", "", f"{row.summary} {row.paper}{searched}")
        for parameter in row.parameters:
            table.add_row("", parameter.name, parameter.range, parameter.meaning)
    console.print(table)
    console.print(
        f"Pairs, as strategy.kind=fedadam+fedprox or search.strategies=[fedavg,fedadam+fedprox]: the server rule of "
        f"{listed(SERVER_RULE_KINDS)} with the clients of {listed(CLIENT_KINDS)}."
    )
    policies = plain_table("policy", "chooses")
    for kind, each in SELECTIONS.items():
        named = ", ".join(name for name in each.model_fields if name != "kind")
        told = f" Parameters: {named}." if named else ""
        policies.add_row(Text(kind, style="bold"), f"{(each.__doc__ or '').splitlines()[0]} {each.paper}.{told}")
    console.print("Who trains, as selection.kind=oort or search.selection=[random,oort,flash]:")
    console.print(policies)
    for note in notes:
        console.print(Text(note))
