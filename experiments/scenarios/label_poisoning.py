"""Label poisoning: rows dealt IID; at one client, the third, all labels are wrong, and consistently so."""

from __future__ import annotations

from experiments.scenarios.contract import ScenarioPlan, ScenarioRequest, corrupt_one_client
from experiments.scenarios.label_flip import ShiftLabels


def label_poisoning(request: ScenarioRequest) -> ScenarioPlan:
    """Deal all rows IID and shift all labels of one client."""
    return corrupt_one_client(request, ShiftLabels())
