"""The table of scenarios: a new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.scenarios.contract import Scenario
from experiments.scenarios.corrupted_client import corrupted_client
from experiments.scenarios.feature_skew import feature_skew
from experiments.scenarios.iid import iid
from experiments.scenarios.label_poisoning import label_poisoning
from experiments.scenarios.label_skew import label_skew
from experiments.scenarios.noisy_labels import noisy_labels

SCENARIOS: Mapping[str, Scenario] = {
    "iid": iid,
    "label_skew": label_skew,
    "feature_skew": feature_skew,
    "noisy_labels": noisy_labels,
    "label_poisoning": label_poisoning,
    "corrupted_client": corrupted_client,
}
