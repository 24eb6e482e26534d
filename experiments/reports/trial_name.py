"""What a trial is called wherever it is shown: its strategy with its parameters, and the policy that chose clients."""

from __future__ import annotations

from fedscout.strategies import StrategySpec
from fedscout.strategies.specification import SELECTION


def trial_name(spec: StrategySpec, selection: str | None) -> str:
    """Return the name, such as `fedadam(eta=0.1, selection=oort)`.

    Args:
        spec: What was tried.
        selection: The policy, also where it is the study's and the specification does not name it; None without one.
    """
    return str(spec if selection is None else spec.with_values({SELECTION: selection}))
