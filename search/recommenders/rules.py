"""Rule-based recommendation: a mapping from a diagnosis to a strategy, an initial generation, and published advice.

The first rule that applies, and whose strategy is in the federation's search space, decides:

| rule | applies to | proposes | source |
| --- | --- | --- | --- |
| no classes | reinforcement learning or regression | FedAvg | McMahan et al. 2017 |
| client-specific features | strong feature skew, own data judge, if named | FedBN | Li et al. 2021 |
| poisoned updates | distant models with similar labels, or very distant with label skew, if named | RFA | Pillutla |
| client-specific concepts | outliers by labels, similar inputs, own data judge, if named | FedRep | Collins et al. |
| wrong labels, 20 % or more | outliers with similar inputs, ≥ 20 % of the clients | FedMedian | Yin et al. 2018 |
| wrong labels, few classes | the same, fewer clients, up to four classes | FedTrimmedAvg, beta (f + ½)/n | Yin et al. |
| corrupted, clean view | a fifth of the clients or more with other inputs, clean data judge | FedMedian | Yin et al. |
| client-specific labels | strong label skew, ≥ 3 classes, own data judge, if named | FedRep | Collins et al. |
| few steps | up to 200 steps, and five classes or a rate up to 0.1; no convolutions | FedAdam, eta 0.1 | Reddi et al. |
| many classes | five classes or more; no convolutions | FedYogi, eta 0.1 | Reddi et al. 2021 |
| skewed labels | label skew, three classes or more | FedAvgM, momentum 0.7 | Hsu et al. 2019 |
| other inputs | outliers with other inputs | FedAvgM, momentum 0.7 | Hsu et al. 2019 |
| no relevant difference | everything else | FedAvg | McMahan et al. 2017 |

"Own data judge" means that the fitness is measured on the clients' own test data. Rules marked "if named" apply only if
the space contains their strategy. They are based on the table of `fedscout bench strategies` (docs/strategies.md,
`gains.csv`): by the model that a client would use, FedBN was 20 points ahead of FedAvg if clients' features have
different scales, FedRep 10 and 19 points under strong label skew and 46 under conflicting concepts, and RFA 67 if a
fifth of the clients attack; of the robust rules RFA costs least without an attack. FedDyn is no better under label skew
than the adaptive servers, which all spaces contain. SCAFFOLD, FedLC, MOON and FedDF, which are often recommended there,
show no such gain in that table, so no rule proposes them. Communities find conflicting concepts on some seeds only. If
own data judge, clients with wrong labels are also tested on them, and a personal last layer serves them:
docs/recommend.md has the figures. Concepts that conflict at half of the clients are not detected, as there is no
minority.

Under label skew no test identifies poisoned updates, as honest models differ, too. A largest z-score of the models'
distances of 7, twice the outlier threshold, was reached in 3 of 59 federations of honest clients with skewed labels,
and in all 42 with attackers that send noise, ten times their update, or four times its opposite; in none of 14 whose
attackers send the opposite at the length of the update (digits, breast cancer, wine quality, Fashion-MNIST; 10 and 20
clients).

An outlier counts only if its model distance stands out and the clients' labels are similar: skewed labels also separate
models, and the median of such models is far worse than their mean. A client with other inputs is not faulty: one model
can serve all clients, so it is excluded only if uncorrupted data judge.

An adaptive server moves every weight by about eta in a round, which exceeds the typical weights of a convolutional
network: LeNet on 2,000 images of ten clients with skewed labels reached 63 % (Fashion-MNIST) and 10 % (CIFAR-10) with
FedYogi, eta 0.1, 68 and 24 % with FedAvg, 70 and 33 % with FedAvgM (docs/recommend.md).

If the client learning rate is searched, too, the rules only decide whether aggregation has to be robust, and the
configuration is the one of that kind that did best in other federations (`priors.py`): on the held-out federations of
the table of trials (docs/choice.md) the rules' own configuration at rate 0.5 lost 1.56 of the achievable gain over
tuned FedAvg.

No rule uses unequal numbers of rows, absences, the model or the number of clients as such: on the development
federations none of them changes the best strategy beyond what the rules use (docs/choice.md, "What no rule reads"). The
choice of strategies and all numbers are our own, by measurement (docs/recommend.md, docs/choice.md). Parameters are
clipped to the ranges of the space. A rule whose strategy is excluded by the cohort or by the user is skipped and
reported; if none remains, the first strategy of the space is used at its default parameters.

**Initial generation of an informed search.** In order, each configuration once, FedAvg excluded as it is trained
anyway:

1. the rules' recommendation, then a portfolio of configurations that did well in other federations (`priors.py`);
2. proposals of the other rules that apply;
3. if clients are suspected, the robust strategies that exclude the suspected number of clients in a round;
4. for classification, what is most promising without specific evidence: FedAdam, FedRep if the space contains it and
   clients' own data judge, as conflicting concepts may be undetected, and FedAvgM, at the rules' parameters;
5. the advice of the published table.

Configurations equivalent to another strategy in this cohort, such as Bulyan without malicious clients, are never
proposed. If the selection policy is searched, the configurations cycle through the policies in the order of the search.
What is missing is drawn uniformly from the space. Robust strategies, drawn or from other federations, are set to the
number of suspected clients, and excluded without suspects: they would equal the mean, or discard honest clients. The
price is a poisoned client that the detectors miss; `search.informed=false` draws from the whole space.

**Selection policy**, if not all clients train in a round, by the results of `fedscout bench selection`. On digits over
50 clients, 10 per round, with skewed clients, wrong labels and both (docs/selection.md): under random selection
accuracy rises by 2.7 to 2.8 points from one client rate to the best one, and by 0.5 to 1.2 points from FedAvg to the
best aggregation. Only random selection, Oort and FLASH were varied over rates, with FedAvg: each at its best rate,
neither is ahead of random selection beyond noise. So step sizes matter more. For permanently slow devices, Oort and
PyramidFL take 0.3 to 0.4 of the time to 90 % of the accuracy of random selection, and end 0.7 to 1.9 points below it,
with FedAvg as with SCAFFOLD.

**Published advice.** The recommendation is accompanied by the advice of FedPilot's table, for comparison. It depends on
the partition of the rows, and only if that is unknown on the measured severity of label skew.

| partition | FedPilot's name | advice |
| --- | --- | --- |
| random | `iid` | FedAvg |
| Dirichlet, α from 1 | `20`, mild, and `dir` | FedAvg and FedProx |
| Dirichlet, α from 0.5 | `50`, moderate, and `dir` | FedAvg and FedProx |
| Dirichlet, smaller α | `90`, severe, and `dir` | FedProx |
| a share of the classes each: from 0.9, below, up to 0.2 | mild, moderate, severe | FedAvg; both; FedProx |
| the writers of FEMNIST, the roles of Shakespeare | the data set | FedProx |
| other or unknown | | by label skew: none, FedAvg; low, both; high, FedProx |

FedProx's μ is 0.01. Communities, by labels, are advised with FedAvg: within one there is less skew to average over. The
severities mean Dirichlet with α of 1, 0.5 and 0.1 in FedPilot's documentation, on which its advice is based; its code
gives each client 20, 50 or 90 % of the classes, of which 20 is the most severe. So shares of classes are interpreted by
their severity, not by their number. A Dirichlet partition with a large α is mild by one row of the table and for
FedProx by another: both are advised. Measured severity has three levels; detected but not strong skew is moderate.

References:
    McMahan et al.: Communication-efficient learning of deep networks from decentralized data. AISTATS 2017.
        arXiv:1602.05629
    Yin, Chen, Ramchandran, Bartlett: Byzantine-robust distributed learning: towards optimal statistical rates.
        ICML 2018. arXiv:1803.01498
    Hsu, Qi, Brown: Measuring the effects of non-identical data distribution for federated visual classification.
        2019. arXiv:1909.06335
    Reddi et al.: Adaptive federated optimization. ICLR 2021. arXiv:2003.00295
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, cycle

from fedscout.engine.seeds import stream
from fedscout.search.objective import DataOrigin
from fedscout.search.recommenders.diagnosis import (
    OUTLIER_Z_SCORE,
    Alternative,
    Diagnosis,
    Reason,
    Recommendation,
    RecommendationContext,
    Severity,
)
from fedscout.search.recommenders.priors import Evidence
from fedscout.strategies import ChoiceRange, FedAdamSpec, FedAvgSpec, StrategySpec
from fedscout.strategies.methods import averaging, communities, personal, robust
from fedscout.strategies.specification import SELECTION

SLOW_RATIO = 2.0
"""Speed counts from this ratio of the slowest client's time to the median client's. The measured federation has 8."""


def selection_notes(context: RecommendationContext) -> Iterator[str]:
    """Yield a sentence on the choice of a selection policy; nothing if all clients train in every round."""
    cohort, diagnosis = context.cohort, context.diagnosis
    if cohort.num_sampled == cohort.num_clients:
        return
    ratio = None if diagnosis is None else diagnosis.speed_ratio
    few = f"{cohort.num_sampled} of {cohort.num_clients} clients train in a round"
    if ratio is not None and ratio >= SLOW_RATIO:
        yield (
            f"{few}, and the slowest takes {ratio:.3g} times as long as the median one. If time matters, "
            "selection.kind=oort or pyramidfl helps more than another aggregation (docs/selection.md)."
        )
    else:
        yield f"{few}. The client learning rate matters more than the selection policy (docs/selection.md)."


SOURCE = "FedPilot's table of advice; FedProx: Li et al. 2020, arXiv:1812.06127"

NATURAL = "natural"
NATURALLY_SKEWED = ("leaf_femnist", "leaf_shakespeare", "shakespeare")
"""Data sets whose natural clients the table names."""

AVERAGE: tuple[StrategySpec, ...] = (FedAvgSpec(), communities.CommunitiesSpec())
PROXIMAL: tuple[StrategySpec, ...] = (averaging.FedProxSpec(proximal_mu=0.01),)

BY_SEVERITY: Mapping[Severity, Sequence[StrategySpec]] = {"none": AVERAGE, "low": AVERAGE + PROXIMAL, "high": PROXIMAL}

_WORDS: Mapping[Severity, str] = {"none": "no or mild", "low": "moderate", "high": "severe"}

MODERATE_ALPHA = 0.5
MILD_SHARE, SEVERE_SHARE = 0.9, 0.2


def alternatives(context: RecommendationContext, recommended: StrategySpec) -> Iterator[Alternative]:
    """Yield the table's advice on classification that is in the space and differs from the recommendation."""
    if context.measure.task != "classification":
        return
    severity = None if context.diagnosis is None else context.diagnosis.label_skew.severity
    if (row := advised_row(context.data_origin, severity)) is None:
        return
    for spec in map(context.space.nearest, BY_SEVERITY[row[1]]):
        if spec is not None and context.space.digest(spec) != context.space.digest(recommended):
            yield Alternative(spec, f"The table's advice for {row[0]}.", SOURCE)


def advised_row(data_origin: DataOrigin | None, severity: Severity | None) -> tuple[str, Severity] | None:
    """Return the row of the published table for a federation, described, and its severity; None if nothing is known.

    Args:
        data_origin: Data set and partition, if known.
        severity: Severity of the label skew, if measured.
    """
    if data_origin is not None:
        if data_origin.partition == NATURAL and data_origin.dataset in NATURALLY_SKEWED:
            return f"the natural clients of {data_origin.dataset}", "high"
        if data_origin.partition == "iid":
            return "rows partitioned at random", "none"
        if (alpha := data_origin.alpha) is not None:
            return f"a Dirichlet partition, α {alpha:g}", "low" if alpha >= MODERATE_ALPHA else "high"
        if (share := data_origin.class_share) is not None:
            by_share: Severity = "none" if share >= MILD_SHARE else "high" if share <= SEVERE_SHARE else "low"
            return f"clients that have {share:.0%} of the classes each, {_WORDS[by_share]}", by_share
    return None if severity is None else (f"{_WORDS[severity]} label skew, as measured", severity)


LARGE_SHARE = 0.2
SEVERAL_CLASSES = 3
MANY_CLASSES = 5
FEW_STEPS = 200
SMALL_RATE = 0.1
POISONED_Z_SCORE = 2 * OUTLIER_Z_SCORE

FEDAVG_PAPER = "McMahan et al. 2017, arXiv:1602.05629"
ROBUST_PAPER = "Yin et al. 2018, arXiv:1803.01498"
MOMENTUM_PAPER = "Hsu et al. 2019, arXiv:1909.06335"
ADAPTIVE_PAPER = "Reddi et al. 2021, arXiv:2003.00295"

MOMENTUM = averaging.FedAvgMSpec(server_learning_rate=1.0, server_momentum=0.7)
ADAPTIVE = FedAdamSpec(eta=0.1, tau=1e-3, beta_1=0.9, beta_2=0.99)
STEADY = averaging.FedYogiSpec(eta=0.1, tau=1e-3, beta_1=0.9, beta_2=0.99)
OWN_HEAD = personal.FedRepSpec()

ROBUST = (
    *(robust.BulyanSpec, robust.CenteredClippingSpec, robust.FedMedianSpec, robust.FedTrimmedAvgSpec),
    *(robust.KrumSpec, robust.MultiKrumSpec, robust.RfaSpec),
)


def is_robust(spec: StrategySpec) -> bool:
    """Whether a strategy bounds the influence of single clients."""
    return isinstance(spec, ROBUST)


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        name: Name for the output.
        source: Publication of the proposed strategy.
        explanation: Returns the facts for which it applies, in a sentence; None if it does not apply.
        spec: The proposed configuration; None is the trimmed mean that cuts off as many values as there are outliers
            in a round.
        by_name: Whether it applies only if the space contains the proposed strategy.
    """

    name: str
    source: str
    explanation: Callable[[RecommendationContext, Diagnosis], str | None]
    spec: StrategySpec | None
    by_name: bool = False

    def proposal(self, context: RecommendationContext, diagnosis: Diagnosis) -> StrategySpec:
        """Return the proposed configuration."""
        num_cut = _in_a_round(_with_like_inputs(diagnosis), context, diagnosis)
        return self.spec or robust.FedTrimmedAvgSpec(beta=cut_of(num_cut, context))


def recommend_by_rules(context: RecommendationContext) -> Recommendation:
    """Return the rules' recommendation.

    Args:
        context: Federation with a diagnosis.
    """
    diagnosis = context.diagnosis
    assert diagnosis is not None, "rules need a diagnosis"
    further: list[Reason] = []
    for rule, explanation in applying(context, diagnosis):
        proposal = rule.proposal(context, diagnosis)
        spec = context.space.nearest(proposal)
        if spec is not None:
            known = _from_other_federations(context, spec)
            if known is not None and (rule.by_name or is_robust(spec)):  # its parameters depend on what was found here
                spec = context.space.nearest(proposal.model_copy(update=known.spec.client_values())) or spec
            elif known is not None:
                spec = known.spec
            if known is not None and known.spec.kind == spec.kind:
                further.insert(0, Reason("other federations", True, known.explanation, known.source))
            return _recommendation(context, spec, Reason(rule.name, True, explanation, rule.source), further)
        if rule.by_name:
            continue
        absence = context.space.absent.get(proposal.kind, "it is not among the strategies to choose from")
        why_not = f"{explanation} But {proposal.kind} can't be chosen: {absence}."
        further.append(Reason(rule.name, False, why_not, rule.source))
    first_kind = context.space.kinds[0]
    spec = context.space.default(first_kind)
    reason = Reason("what is left", True, f"No rule's strategy can be chosen here; {first_kind} can.", spec.paper)
    return _recommendation(context, spec, reason, further)


def _from_other_federations(context: RecommendationContext, proposal: StrategySpec) -> Alternative | None:
    """Return a proposal, which is in the space, with what it gained elsewhere; None if that is unknown.

    If the client rate is searched, too, it is the best one elsewhere that is robust if the proposal is.
    """
    wants_robust = is_robust(proposal)
    evidence = Evidence.of(context, wants_robust)
    if evidence is None:
        return None
    if "client_learning_rate" in context.space.client_ranges:
        return evidence.best(lambda spec: is_robust(spec) == wants_robust)
    return evidence.about(proposal)


def applying(context: RecommendationContext, diagnosis: Diagnosis) -> Iterator[tuple[Rule, str]]:
    """Yield the rules that apply and why, the deciding one first; without classes only that one."""
    for rule in RULES:
        explanation = rule.explanation(context, diagnosis)
        if explanation is not None:
            yield rule, explanation
            if rule.explanation is _no_classes:
                return


def calls_for_robust(context: RecommendationContext) -> bool:
    """Whether the first rule that applies and whose strategy is in the space proposes robust aggregation."""
    assert context.diagnosis is not None, "rules need a diagnosis"
    proposals = (rule.proposal(context, context.diagnosis) for rule, _ in applying(context, context.diagnosis))
    return next((is_robust(spec) for proposal in proposals if (spec := context.space.nearest(proposal))), False)


def _recommendation(
    context: RecommendationContext, spec: StrategySpec, ground: Reason, further: Sequence[Reason]
) -> Recommendation:
    return Recommendation(
        spec=spec,
        source="rules",
        reasons=(ground, *further),
        notes=(*spec.notes(context.cohort), *selection_notes(context)),
        diagnosis=context.diagnosis,
        alternatives=tuple(alternatives(context, spec)),
    )


# What the rules look at.


def _outliers(diagnosis: Diagnosis) -> tuple[int, ...]:
    """Return the outliers by model distance if labels are similar and they are a minority; else none."""
    labels = diagnosis.label_skew
    labels_similar = not labels.detected or (labels.value or 0.0) <= (labels.threshold or 0.0)
    clients = diagnosis.outlier.clients
    is_minority = 2 * len(clients) < diagnosis.num_clients
    return clients if diagnosis.outlier.severity == "high" and labels_similar and is_minority else ()


def _with_like_inputs(diagnosis: Diagnosis) -> tuple[int, ...]:
    return tuple(client for client in _outliers(diagnosis) if client not in diagnosis.feature_skew.clients)


def _with_other_inputs(diagnosis: Diagnosis) -> tuple[int, ...]:
    return tuple(client for client in _outliers(diagnosis) if client in diagnosis.feature_skew.clients)


def _share(diagnosis: Diagnosis, clients: tuple[int, ...]) -> float:
    return len(clients) / diagnosis.num_clients


def suspected_per_round(context: RecommendationContext) -> int:
    """Return how many clients per round a robust strategy should exclude.

    Clients with wrong labels count; clients with other inputs only if uncorrupted data judge, as one model can serve
    all.
    """
    diagnosis = context.diagnosis
    assert diagnosis is not None, "rules need a diagnosis"
    suspects = _outliers(diagnosis) if context.view == "clean" else _with_like_inputs(diagnosis)
    return _in_a_round(suspects, context, diagnosis)


# When they apply.


def _no_classes(context: RecommendationContext, diagnosis: Diagnosis) -> str | None:
    if diagnosis.num_classes > 0 and context.measure.task == "classification":
        return None
    return "The other rules were measured on classification only."


def _wrong_labels_at_a_fifth(_: RecommendationContext, diagnosis: Diagnosis) -> str | None:
    if _share(diagnosis, _with_like_inputs(diagnosis)) < LARGE_SHARE:
        return None
    return _wrong_labels(diagnosis, "would distort a mean; the median limits their effect.")


def _wrong_labels_of_few(_: RecommendationContext, diagnosis: Diagnosis) -> str | None:
    if not _with_like_inputs(diagnosis) or diagnosis.num_classes >= MANY_CLASSES:
        return None
    return _wrong_labels(diagnosis, "are few: a trimmed mean leaves out the extremes and keeps most of the others.")


def _wrong_labels(diagnosis: Diagnosis, remedy: str) -> str:
    clients = _with_like_inputs(diagnosis)
    return (
        f"The labels of {diagnosis.names.some_clients(clients)} are probably wrong: outliers by labels or model, "
        f"whose inputs are like the others'. {len(clients)} of {diagnosis.num_clients} clients {remedy}"
    )


def _corrupted_and_clean(context: RecommendationContext, diagnosis: Diagnosis) -> str | None:
    clients = _with_other_inputs(diagnosis)
    if not clients or context.view != "clean" or _share(diagnosis, clients) < LARGE_SHARE:
        return None
    named = diagnosis.names.some_clients(clients)
    return (
        f"The inputs and the model of {named} are far from the others', and the fitness is measured on "
        "uncorrupted data: updates from such inputs do not help there."
    )


def _own_features(context: RecommendationContext, diagnosis: Diagnosis) -> str | None:
    if diagnosis.feature_skew.severity != "high" or context.view != "own":
        return None
    return (
        "The clients' features differ; batch normalisation that stays local to each client absorbs their shifts and "
        "scales."
    )


def _poisoned_updates(_: RecommendationContext, diagnosis: Diagnosis) -> str | None:
    clients = tuple(client for client in _outliers(diagnosis) if client in diagnosis.clients_of_other_updates)
    if clients:
        named = diagnosis.names.some_clients(clients)
        return (
            f"The model of {named} is far from the others', although inputs and labels are similar: "
            "its updates may be poisoned. A geometric median bounds their influence."
        )
    score, features = diagnosis.outlier_z_score, diagnosis.feature_skew.severity
    if not diagnosis.label_skew.detected or features == "high" or score is None or score < POISONED_Z_SCORE:
        return None
    return (
        f"A model is farther from the others' than label skew explains (modified z-score {score:.1f}): updates may be "
        "poisoned. A geometric median bounds their influence, and costs little if they are not."
    )


def _own_concepts(context: RecommendationContext, diagnosis: Diagnosis) -> str | None:
    clients = tuple(c for c in _with_like_inputs(diagnosis) if c not in diagnosis.clients_of_other_updates)
    if not clients or context.view != "own":
        return None
    named = diagnosis.names.some_clients(clients)
    return (
        f"The same inputs have other labels at {named}, whose own data judge as well: a last layer of "
        "each client's own, on a body that all train, fits both."
    )


def _own_labels(context: RecommendationContext, diagnosis: Diagnosis) -> str | None:
    strong = diagnosis.label_skew.severity == "high" and diagnosis.num_classes >= SEVERAL_CLASSES
    if not strong or context.view != "own":
        return None
    return (
        f"With {diagnosis.num_classes} classes{_skewed(diagnosis)} one model has to serve unlike clients; a last layer "
        "of each client's own, on a body that all train, fits its own classes."
    )


def _few_steps(context: RecommendationContext, diagnosis: Diagnosis) -> str | None:
    steps = context.steps_a_round
    if context.cohort.convolutional or steps is None or steps * context.num_rounds > FEW_STEPS:
        return None
    rate_is_fixed = "client_learning_rate" not in context.space.client_ranges
    are_steps_small = rate_is_fixed and float(context.space.given["client_learning_rate"]) <= SMALL_RATE
    if diagnosis.num_classes < MANY_CLASSES and not are_steps_small:
        return None
    return (
        f"A client makes about {steps * context.num_rounds} steps in {context.num_rounds} rounds, few for "
        f"{diagnosis.num_classes} classes{_skewed(diagnosis)}: an adaptive server optimizer gets further in few steps."
    )


def _many_classes(context: RecommendationContext, diagnosis: Diagnosis) -> str | None:
    if context.cohort.convolutional or diagnosis.num_classes < MANY_CLASSES:
        return None
    return (
        f"With {diagnosis.num_classes} classes{_skewed(diagnosis)} the mean of local models moves slowly; steps of the "
        "server's own for every parameter speed it up."
    )


def _skewed_labels(_: RecommendationContext, diagnosis: Diagnosis) -> str | None:
    if not diagnosis.label_skew.detected or diagnosis.num_classes < SEVERAL_CLASSES:
        return None
    return (
        f"With {diagnosis.num_classes} classes{_skewed(diagnosis)} every local model forgets the classes that its "
        "client lacks, so their mean swings; momentum on the server evens that out."
    )


def _other_inputs(_: RecommendationContext, diagnosis: Diagnosis) -> str | None:
    clients = _with_other_inputs(diagnosis)
    if not clients:
        return None
    named = diagnosis.names.some_clients(clients)
    return (
        f"The inputs and the model of {named} are far from the others': one model can serve all clients, and "
        "server momentum helps it to learn the rarer inputs."
    )


def _no_relevant_difference(_: RecommendationContext, diagnosis: Diagnosis) -> str:
    label, feature, outlier = diagnosis.label_skew, diagnosis.feature_skew, diagnosis.outlier
    findings = {"label skew": label, "feature skew": feature, "outlier clients": outlier}
    detected = " and ".join(name for name, finding in findings.items() if finding.detected) or "no detected difference"
    return f"With {detected} at {diagnosis.num_classes} classes, no rule calls for more than the mean."


def _skewed(diagnosis: Diagnosis) -> str:
    return {"high": " and strong label skew", "low": " and label skew"}.get(diagnosis.label_skew.severity or "", "")


# What they propose.


def cut_of(suspects: int, context: RecommendationContext) -> float:
    """Return the β that cuts off `suspects` values at either end: the midpoint of its range, robust to rounding."""
    return min(0.49, (suspects + 0.5) / context.cohort.num_sampled)


def _in_a_round(clients: tuple[int, ...], context: RecommendationContext, diagnosis: Diagnosis) -> int:
    """Return the expected number of the given clients in a round, rounded up."""
    return -(-len(clients) * context.cohort.num_sampled // diagnosis.num_clients)


RULES: tuple[Rule, ...] = (
    Rule("no classes", FEDAVG_PAPER, _no_classes, FedAvgSpec()),
    Rule("client-specific features", personal.FedBNSpec.paper, _own_features, personal.FedBNSpec(), by_name=True),
    Rule("poisoned updates", robust.RfaSpec.paper, _poisoned_updates, robust.RfaSpec(), by_name=True),
    Rule("client-specific concepts", personal.FedRepSpec.paper, _own_concepts, OWN_HEAD, by_name=True),
    Rule("wrong labels, 20 % or more", ROBUST_PAPER, _wrong_labels_at_a_fifth, robust.FedMedianSpec()),
    Rule("wrong labels, few classes", ROBUST_PAPER, _wrong_labels_of_few, None),
    Rule("corrupted, clean view", ROBUST_PAPER, _corrupted_and_clean, robust.FedMedianSpec()),
    Rule("client-specific labels", personal.FedRepSpec.paper, _own_labels, OWN_HEAD, by_name=True),
    Rule("few steps", ADAPTIVE_PAPER, _few_steps, ADAPTIVE),
    Rule("many classes", ADAPTIVE_PAPER, _many_classes, STEADY),
    Rule("skewed labels", MOMENTUM_PAPER, _skewed_labels, MOMENTUM),
    Rule("other inputs", MOMENTUM_PAPER, _other_inputs, MOMENTUM),
    Rule("no relevant difference", FEDAVG_PAPER, _no_relevant_difference, FedAvgSpec()),
)


DRAWS = 1000
DRAWN = "Drawn at random, for exploration."
"""Explanation of a randomly drawn configuration."""


def first_generation(
    context: RecommendationContext,
    recommendation: Recommendation,
    size: int,
    seed: int,
    references: Sequence[StrategySpec] = (),
    priors: Sequence[Alternative] = (),
) -> tuple[Alternative, ...]:
    """Return the configurations to try first, those with the strongest evidence first.

    Args:
        context: Federation with a diagnosis.
        recommendation: The rules' recommendation for it.
        size: Number of configurations; fewer are returned if the space holds fewer.
        seed: Seed of random configurations, different for each federation.
        references: Configurations trained outside the budget, never proposed.
        priors: Configurations that did well in other federations.
    """
    taken = {context.space.digest(spec) for spec in references}
    proposals = chain(_proposals(context, recommendation, priors), _defaults(context, seed))
    source = _cycle_policies(proposals, context)
    founded = _new(source, size, context, taken)
    return (*founded, *_new(_drawn(context, seed), size - len(founded), context, taken))


def kinds_in_turn(context: RecommendationContext, seed: int) -> tuple[StrategySpec, ...]:
    """Return one random configuration of each kind, in random order; robust ones match the suspected clients.

    Args:
        context: Federation with a diagnosis.
        seed: Seed of the random configurations.
    """
    specs_by_label: dict[str, StrategySpec] = {}
    for drawn in _drawn(context, seed, "kinds in turn"):
        specs_by_label.setdefault(drawn.spec.label, drawn.spec)
        if len(specs_by_label) == len(context.space.kinds):
            break
    return tuple(specs_by_label.values())


def _new(
    source: Iterator[Alternative], count: int, context: RecommendationContext, taken: set[str]
) -> list[Alternative]:
    """Return the first candidates that are not taken, at most `count`, and add them to `taken`."""
    candidates: list[Alternative] = []
    while len(candidates) < count and (candidate := next(source, None)) is not None:
        digest = context.space.digest(candidate.spec)
        if digest not in taken and not context.space.has_equivalent(candidate.spec):
            taken.add(digest)
            candidates.append(candidate)
    return candidates


def _proposals(
    context: RecommendationContext, recommendation: Recommendation, priors: Sequence[Alternative]
) -> Iterator[Alternative]:
    """Yield the configurations that the diagnosis proposes, duplicates included; each is in the space."""
    diagnosis, space = context.diagnosis, context.space
    assert diagnosis is not None, "rules need a diagnosis"
    suspects = suspected_per_round(context)
    reason = recommendation.reasons[0]
    yield Alternative(recommendation.spec, reason.explanation, reason.source)
    yield from (fitted for option in priors if (fitted := _matching_suspects(option, suspects, context)) is not None)
    proposals = [
        (rule.proposal(context, diagnosis), explanation, rule.source)
        for rule, explanation in applying(context, diagnosis)
    ]
    if suspects:
        explanation = f"{suspects} of {context.cohort.num_sampled} clients a round are suspected to be faulty."
        kept = context.cohort.num_sampled - suspects
        of_that_number = (
            robust.FedTrimmedAvgSpec(beta=cut_of(suspects, context)),
            robust.MultiKrumSpec(num_malicious_nodes=suspects, num_nodes_to_select=kept),
            robust.FedMedianSpec(),
        )
        proposals += [(spec, explanation, spec.paper) for spec in of_that_number]
    general = "It often helps if steps are small or clients differ."
    usual = (ADAPTIVE, OWN_HEAD, MOMENTUM) if context.view == "own" else (ADAPTIVE, MOMENTUM)
    if context.measure.task == "classification":
        proposals += [(spec, general, spec.paper) for spec in usual]
    proposals += [(option.spec, option.explanation, option.source) for option in recommendation.alternatives]
    for spec, explanation, source in proposals:
        if (nearest := space.nearest(spec)) is not None:
            yield Alternative(nearest, explanation, source)


def _cycle_policies(source: Iterator[Alternative], context: RecommendationContext) -> Iterator[Alternative]:
    policies = context.space.client_ranges.get(SELECTION)
    if not isinstance(policies, ChoiceRange):
        yield from source
        return
    turns, seen = cycle(policies.choices), set()
    for candidate in source:
        if (digest := context.space.digest(candidate.spec)) not in seen:
            seen.add(digest)
            yield replace(candidate, spec=candidate.spec.with_values({SELECTION: next(turns)}))


def _defaults(context: RecommendationContext, seed: int) -> Iterator[Alternative]:
    """Yield each strategy at its documented defaults, in random order; robust ones only with suspected clients."""
    kinds = [*context.space.kinds]
    for place in stream(seed, "documented defaults").permutation(len(kinds)):
        spec = context.space.default(kinds[place])
        default = Alternative(spec, "Its documented defaults.", spec.paper)
        if (candidate := _matching_suspects(default, suspected_per_round(context), context)) is not None:
            yield candidate


def _drawn(
    context: RecommendationContext, seed: int, purpose: str = "informed first generation"
) -> Iterator[Alternative]:
    """Yield random configurations; robust ones only with suspected clients, and set to their number."""
    generator = stream(seed, purpose)
    suspects = suspected_per_round(context)
    for _ in range(DRAWS):
        spec = context.space.random(generator)
        candidate = _matching_suspects(Alternative(spec, DRAWN, spec.paper), suspects, context)
        if candidate is not None:
            yield candidate


def _matching_suspects(proposed: Alternative, suspects: int, context: RecommendationContext) -> Alternative | None:
    """Return the proposal, with robust strategies set to the number of suspects; None for these without suspects."""
    if not is_robust(proposed.spec):
        return proposed
    spec = _against(suspects, proposed.spec, context) if suspects else None
    return None if spec is None else replace(proposed, spec=spec)


def _against(suspects: int, spec: StrategySpec, context: RecommendationContext) -> StrategySpec | None:
    """Return a robust configuration that excludes the given number of clients per round, as far as its ranges allow."""
    values = {"num_malicious_nodes": suspects, "beta": cut_of(suspects, context)}
    updates = {name: value for name, value in values.items() if name in type(spec).model_fields}
    return context.space.nearest(spec.model_copy(update=updates))
