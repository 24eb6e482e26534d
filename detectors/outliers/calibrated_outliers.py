"""Calibrated outliers: whose labels, or whose models, are not like the others' beyond chance?

Two tests of labels and one of models share the false-alarm rate.

**Labels.** Whose labels agree less with the other clients', or say less about its rows
(`fedscout.detectors.outliers.agreement_tests`).

Nobody is an outlier where there is no majority: where clients' labels rest on different features and no two thirds of
the clients agree (`fedscout.detectors.outliers.concepts`), or where the labels of more than a third of the clients are
contradicted. The decision is then "not measured", models included, and clients that agree are named.

**Models.** Whose models are farther off than exchanged ones would be (`fedscout.detectors.outliers.exchanged_models`).
Clients of unlike labels or features train unlike models although nothing is wrong with them, so this test decides only
where both skews were tested for and neither was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fedscout.detectors.detection_config import DetectionConfig
from fedscout.detectors.outliers.concepts import Concepts
from fedscout.detectors.outliers.outliers import NAME
from fedscout.detectors.report import CalibratedFinding, ClientEvidence
from fedscout.detectors.statistics.calibration import ClientTest, decide
from fedscout.engine.data.names import UNNAMED, Names

MOST_TESTS: Final = 3
"""That share the rate."""

MOST_OUT_OF_IT: Final = 1 / 3
"""Part of the clients that can be unlike a majority."""


def why_models_differ(skews: Sequence[CalibratedFinding]) -> str | None:
    """Return why honest clients would train unlike models, or None, by the calibrated findings on both skews."""
    for skew in skews:
        if not skew.measured:
            return f"{skew.name.replace('_', ' ')} was not measured and may be the reason"
        if skew.detected:
            return f"there is {skew.name.replace('_', ' ')}"
    return None


# -- decision --------------------------------------------------------------------------------------------------------


def decide_outliers_calibrated(
    labels: Sequence[ClientTest],
    models: ClientTest | None,
    explained: str | None,
    settings: DetectionConfig,
    concepts: Concepts | None = None,
    names: Names = UNNAMED,
) -> CalibratedFinding:
    """Join the tests.

    Args:
        labels: Tests of labels; none where they could not be measured.
        models: The test of model distances; None likewise.
        explained: Why models differ without anything being wrong; they then do not decide.
        settings: The rate of false alarms, and the smallest effects that flag.
        concepts: Whether clients' labels rest on the same features; None where that is not known.
        names: Of clients and classes, for the sentence.
    """
    if concepts is not None and not concepts.has_majority:
        finding = CalibratedFinding.unmeasured(NAME, settings.detector_rate, concepts.text(names))
        return finding.model_copy(update={"groups": concepts.named})
    tests = [(test, settings.disagreement_effect) for test in labels]
    remark = ""
    if explained:
        remark = f"Distances of models did not decide, as {explained}."
    elif models is not None:
        tests.append((models, settings.distance_effect))
    if not tests:
        reason = explained or (
            "fewer than three clients, or too few rows of each, could be compared, or their classes do not differ"
        )
        return CalibratedFinding.unmeasured(NAME, settings.detector_rate, reason)
    finding = decide(NAME, tests, settings.detector_rate, _describe, remark, names)
    contradicted = [own.flagged and own.source == "labels" for own in finding.clients.values()]
    if sum(contradicted) > MOST_OUT_OF_IT * len(contradicted):
        reason = (
            f"the labels of {sum(contradicted)} of {len(contradicted)} clients are contradicted: there is no majority"
        )
        return CalibratedFinding.unmeasured(NAME, settings.detector_rate, reason)
    return finding


def _describe(client: int, evidence: ClientEvidence, names: Names) -> str:
    name = names.one_client(client)
    if evidence.source == "models":
        return f"The models of {name} are {evidence.effect:.0%} farther from the others' than the median client's"
    if evidence.effect <= 0:
        return "No client's labels fit its features less well than the other clients' labels fit theirs"
    text = (
        f"The labels of {name} fit its features less well than the other clients' labels fit theirs, as if "
        f"{min(evidence.effect, 1.0):.0%} of its rows had random labels"
    )
    return f"{text}, most of all in {names.some_classes(evidence.classes)}" if evidence.classes else text
