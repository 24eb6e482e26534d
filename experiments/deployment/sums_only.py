"""What can't be done where clients send masked sums alone (docs/privacy.md), told before anything trains."""

from __future__ import annotations

from fedscout.engine.contracts.trial_strategy import EngineNeeds
from fedscout.engine.nodes.sum_calls import FEWEST
from fedscout.engine.trials.trial_settings import TrialSettings
from fedscout.strategies import StrategySpec
from fedscout.strategies.methods.groups.communities import CommunitiesSpec

OF_ALL = "secure sums are of all clients"

DETECTION = (
    f"a detection compares clients with each other, and {OF_ALL}; totals() tells what the federation holds: rows of "
    "each class, means and deviations of features"
)


def beyond_sums(spec: StrategySpec, needs: EngineNeeds | None = None) -> str | None:
    """Return why a strategy needs more of its clients than sums; None if it does not.

    Args:
        spec: The strategy.
        needs: Of it, where they are not those that it declares.
    """
    needs = spec.needs() if needs is None else needs
    if isinstance(spec, CommunitiesSpec):
        return f"{spec.label} groups clients by what each of them tells, and {OF_ALL}"
    if needs.replies != "merged":
        return f"{spec.label} looks at the model of each client, and {OF_ALL}"
    if needs.sees_evaluation:
        return f"{spec.label} looks at the score of each client, and {OF_ALL}"
    algorithm = spec.client_algorithm()
    if algorithm is not None and algorithm.validates:
        return f"{spec.label} compares what few clients measure on their validation rows, and {OF_ALL}"
    return None


def beyond_sums_of(settings: TrialSettings) -> str | None:
    """Return why a trial needs more of its clients than sums; None if it does not."""
    session, spec = settings.session, settings.strategy
    if isinstance(spec, StrategySpec) and (reason := beyond_sums(spec, session.needs)):
        return reason
    if settings.selection is not None:
        return f"selection.kind={settings.selection.label} chooses by what each client reports, and {OF_ALL}"
    if session.worst_clients:
        return f"search.objectives=worst_clients needs the score of each client, and {OF_ALL}"
    if session.client_table is not None and session.client_table.table.threshold is not None:
        return f"with client_settings.threshold each client says whether it is far from the table, and {OF_ALL}"
    fewest = min(settings.num_sampled, session.num_scored or settings.num_sampled)
    if fewest < FEWEST:
        return f"secure sums must be of at least {FEWEST} clients a round, got {fewest}"
    return None
