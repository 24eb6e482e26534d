"""The rules: a recommendation from a diagnosis, the first generation of a search, and published advice.

One-shot recommendation by rules: a fixed mapping from a diagnosis to a strategy with its parameters.

The first rule that applies, and whose strategy can be chosen in the federation's search space, decides:

| rule | applies to | proposes | rests on |
| --- | --- | --- | --- |
| no classes | clients that play episodes or predict a quantity | FedAvg | McMahan et al. 2017 |
| features of their own | strong feature skew, own data judge, if named | FedBN | Li et al. 2021 |
| poisoned updates | models far away with like labels, or very far under label skew, if named | RFA | Pillutla et al. |
| concepts of their own | outliers by labels with like inputs, own data judge, if named | FedRep | Collins et al. |
| wrong labels at a fifth | outliers with like inputs, a fifth of the clients or more | FedMedian | Yin et al. 2018 |
| wrong labels, few classes | the same, fewer clients, up to four classes | FedTrimmedAvg, beta (f + ½)/n | Yin et al. |
| corrupted, clean view | outliers with other inputs, judged on uncorrupted data | FedMedian | Yin et al. 2018 |
| labels of their own | strong label skew, three classes or more, own data judge, if named | FedRep | Collins et al. |
| few steps | up to 200 steps a client in all, and five classes or a rate up to 0.1 | FedAdam, eta 0.1 | Reddi et al. |
| many classes | five classes or more | FedYogi, eta 0.1 | Reddi et al. 2021 |
| skewed labels | label skew, three classes or more | FedAvgM, momentum 0.7 | Hsu et al. 2019 |
| other inputs | outliers with other inputs | FedAvgM, momentum 0.7 | Hsu et al. 2019 |
| nothing to mend | everything else | FedAvg | McMahan et al. 2017 |

Rules marked "if named" are silent unless the space holds what they propose. They rest on the table of
`fedscout bench strategies` (docs/strategies.md, `prompt.py`): by the model that a client would use, FedBN was 20
points ahead of FedAvg where clients' features have other scales, FedRep 10 and 19 points where labels are strongly
skewed and 46 where concepts conflict, and RFA 67 where a fifth attack; of the robust rules it costs least where nobody
does. FedDyn is no better under label skew than the adaptive servers, which all spaces have. Of SCAFFOLD, FedLC, MOON
and FedDF, which are often advised there, that table shows no such gain, so no rule has them. Communities find
conflicting concepts on some seeds only. Where own data judge, who has wrong labels is tested on them, too, and a last
layer of its own serves it: docs/recommend.md has the figures. Concepts that conflict at half of the clients are not
found, as nobody is in the minority.

Under label skew no test says whose update is poisoned, as honest models differ, too. A largest z-score of the models'
distances of 7, twice what makes an outlier, was reached in 3 of 59 federations of honest clients with skewed labels,
and in all 42 of attackers who send noise, ten times their update, or four times its opposite; in none of 14 where the
opposite is as long as the update (digits, breast cancer, wine quality, Fashion-MNIST; 10 and 20 clients).

An outlier counts where it stands out by itself and the clients' labels are alike: skewed labels move models apart, too,
and the median of such models is far worse than their mean. A client of other inputs is no fault: one model can serve it
and the others, so it is left out only if the uncorrupted data judge.

Where the clients' rate is searched, too, the proposal is at rate 0.5, within the range: on the development federations
of the table of trials (docs/choice.md; standardised features, small nets) the rules lost .74 of what there is to win
beyond tuned FedAvg at rate 0.1, and .31 at 0.5.

No rule reads unequal numbers of rows, absences, the model or the number of clients as such: on the development
federations none of them changes who is best beyond what rules read already (docs/choice.md, "What no rule reads").

Which of the published strategies is taken when, and the numbers, are choices of ours by measurement, as
docs/recommend.md and docs/choice.md show. Parameters are moved into the ranges of the space where these are narrower. A
rule whose strategy the cohort or the user's choice of strategies forbids is passed over and says so; if none is left,
the first strategy of the space is taken at its default parameters.

Beside a recommendation a published table's advice is named (`rules.py`).

References:
    McMahan et al.: Communication-efficient learning of deep networks from decentralized data. AISTATS 2017.
        arXiv:1602.05629
    Yin, Chen, Ramchandran, Bartlett: Byzantine-robust distributed learning: towards optimal statistical rates.
        ICML 2018. arXiv:1803.01498
    Hsu, Qi, Brown: Measuring the effects of non-identical data distribution for federated visual classification.
        2019. arXiv:1909.06335
    Reddi et al.: Adaptive federated optimization. ICLR 2021. arXiv:2003.00295

What an informed search begins with: what the diagnosis proposes, a stated share of exploration, kinds for later.

In order, each configuration once, FedAvg left out as it is trained anyway:

1. the rules' answer, then what did well in like federations;
2. what further rules propose that apply, too;
3. where clients are suspected, the robust strategies that leave out as many as are suspected in a round;
4. what has the best chance where nothing in particular is known, of classes: FedAdam, FedRep if the space has it and
   clients' own data judge, as concepts that conflict may be there unseen, and FedAvgM, at the rules' parameters;
5. the advice of the published table.

What is the same as another strategy in this cohort, such as Bulyan without malicious clients, is never proposed.

Where who trains is searched, they take the policies in turn, in the order in which the search names them.

A quarter of the generation, at least one configuration, is left to exploration, uniformly from the space. Robust
strategies, drawn or of like federations, come with the number of suspected clients, and not at all where nobody is
suspected. Without a suspect they equal
the mean, or throw away honest clients: a generation of four drawn from the whole space held two or three of them, on
whatever federation. A poisoned client that the detectors miss is the price of that; `search.informed=false` draws from
the whole space.

What the rules say of who trains, where not all clients do in a round: by what `fedscout bench selection` measured.

On digits over 50 clients, 10 a round, under skewed clients, wrong labels and both (docs/selection.md): with random
choice accuracy rises by 2.7 to 2.8 points from one client rate to the best one, and between FedAvg and the best
aggregation lie 0.5 to 1.2 points. Only random choice, Oort and FLASH were varied over rates, with FedAvg: each at its
best rate, neither of the two is ahead of random choice beyond noise. So step sizes matter more. Where
devices are slow for good, Oort and PyramidFL take 0.3 to 0.4 of the time to 90 % of what random choice reaches, and end
0.7 to 1.9 points below it, with FedAvg as with SCAFFOLD.

What a published table of advice would compare a recommendation with: FedPilot's.

It goes by how the rows came to the clients, and only where that is not known by how strong the measured label skew is.

| known | FedPilot's name | advice |
| --- | --- | --- |
| dealt at random | `iid` | FedAvg |
| Dirichlet, α from 1 | `20`, mild, and `dir` | FedAvg and FedProx |
| Dirichlet, α from 0.5 | `50`, moderate, and `dir` | FedAvg and FedProx |
| Dirichlet, smaller α | `90`, severe, and `dir` | FedProx |
| a share of the classes each: from 0.9, below, up to 0.2 | mild, moderate, severe | FedAvg; both; FedProx |
| the writers of FEMNIST, the roles of Shakespeare | the data set | FedProx |
| anything else, or nothing | | by label skew: none, FedAvg; low, both; high, FedProx |

FedProx's μ begins at 0.01. Communities, by labels, stand beside FedAvg: inside of one there is less skew to average
over.

The severities mean Dirichlet with α of 1, 0.5 and 0.1 in FedPilot's documentation, for which its advice is made; its
code gives each client 20, 50 or 90 % of the classes, of which 20 is the most severe. So shares of classes are read by
how severe they are, not by their number. A Dirichlet partition with a large α is mild by one row of the table and for
FedProx by another: both are named. A measured severity has three degrees; what is found but not strong is moderate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

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
from fedscout.strategies import (
    BulyanSpec,
    CenteredClippingSpec,
    ChoiceRange,
    FedAdamSpec,
    FedAvgMSpec,
    FedAvgSpec,
    FedBNSpec,
    FedMedianSpec,
    FedProxSpec,
    FedTrimmedAvgSpec,
    FedYogiSpec,
    KrumSpec,
    MultiKrumSpec,
    RfaSpec,
    StrategySpec,
)
from fedscout.strategies.methods.communities import CommunitiesSpec
from fedscout.strategies.methods.personal_layers import FedRepSpec
from fedscout.strategies.specification import SELECTION

SLOW_RATIO = 2.0
"""From here on speed counts: the slowest client takes so many times as long as the median one. The measured federation
has 8."""

QUICK = ("oort", "pyramidfl")
"""Policies that spare slow clients, and gain most where devices are slow for good."""


def selection_notes(situation: RecommendationContext) -> Iterator[str]:
    """Yield what is known of who should train, a sentence; nothing where all clients do."""
    cohort, diagnosis = situation.cohort, situation.diagnosis
    if cohort.num_sampled == cohort.num_clients:
        return
    ratio = None if diagnosis is None else diagnosis.speed_ratio
    few = f"{cohort.num_sampled} of {cohort.num_clients} clients train in a round"
    if ratio is not None and ratio >= SLOW_RATIO:
        is_set = situation.selection in QUICK
        quick = f"selection.kind={situation.selection}, as is set," if is_set else "selection.kind=oort or pyramidfl"
        yield (
            f"{few}, and the slowest takes {ratio:.3g} times as long as the median one: where time counts, {quick} is "
            "worth more than another aggregation; for the last points of accuracy random choice was ahead "
            "(docs/selection.md)."
        )
    else:
        yield (
            f"{few}: in `fedscout bench selection` the clients' rate was worth more than how models are aggregated or "
            "who trains. Only random choice, oort and flash were varied over rates, with FedAvg: each at its best, "
            "neither beat random choice beyond noise (docs/selection.md)."
        )


SOURCE = "FedPilot's table of advice; FedProx: Li et al. 2020, arXiv:1812.06127"

NATURAL = "natural"
NATURALLY_SKEWED = ("leaf_femnist", "leaf_shakespeare", "shakespeare")
"""Data sets whose natural clients the table names."""

AVERAGE: tuple[StrategySpec, ...] = (FedAvgSpec(), CommunitiesSpec())
PROXIMAL: tuple[StrategySpec, ...] = (FedProxSpec(proximal_mu=0.01),)

BY_SEVERITY: Mapping[Severity, tuple[StrategySpec, ...]] = {
    "none": AVERAGE,
    "low": (*AVERAGE, *PROXIMAL),
    "high": PROXIMAL,
}

_WORDS: Mapping[Severity, str] = {"none": "no or mild", "low": "moderate", "high": "severe"}

MILD_ALPHA, MODERATE_ALPHA = 1.0, 0.5
MILD_SHARE, SEVERE_SHARE = 0.9, 0.2


@dataclass(frozen=True)
class Advice:
    """A line of the table.

    Attributes:
        applies_to: In words.
        specs: What it advises.
    """

    applies_to: str
    specs: tuple[StrategySpec, ...]


def alternatives(situation: RecommendationContext, recommended: StrategySpec) -> Iterator[Alternative]:
    """Yield the table's advice on classification, as far as it can be chosen and is not what is recommended already."""
    if situation.measure.task != "classification":
        return
    severity = None if situation.diagnosis is None else situation.diagnosis.label_skew.severity
    advice = advice_for(situation.dealing, severity)
    for advised in () if advice is None else advice.specs:
        spec = situation.space.nearest(advised)
        if (
            advice is not None
            and spec is not None
            and situation.space.digest(spec) != situation.space.digest(recommended)
        ):
            yield Alternative(spec, f"The table's advice for {advice.applies_to}.", SOURCE)


def advice_for(dealing: DataOrigin | None, severity: Severity | None) -> Advice | None:
    """Return what the table says of a federation; None where nothing is known of it.

    Args:
        dealing: How rows came to the clients, if that is known.
        severity: Of the label skew, if that was measured.
    """
    known = None if dealing is None else _of_dealing(dealing)
    if known is not None or severity is None:
        return known
    return Advice(f"{_WORDS[severity]} label skew, as it was measured", BY_SEVERITY[severity])


def _of_dealing(dealing: DataOrigin) -> Advice | None:
    """Return what the table says of a way to deal rows; None if it names none like it."""
    if dealing.partition == NATURAL and dealing.dataset in NATURALLY_SKEWED:
        return Advice(f"the natural clients of {dealing.dataset}", PROXIMAL)
    if dealing.partition == "iid":
        return Advice("rows dealt at random", AVERAGE)
    if dealing.alpha is not None:
        both = dealing.alpha >= MODERATE_ALPHA
        degree = "mild" if dealing.alpha >= MILD_ALPHA else "moderate" if both else "severe"
        what = f"rows dealt by Dirichlet, α {dealing.alpha:g}, {degree}"
        return Advice(what, BY_SEVERITY["low" if both else "high"])
    if dealing.class_share is not None:
        share = dealing.class_share
        severity: Severity = "none" if share >= MILD_SHARE else "high" if share <= SEVERE_SHARE else "low"
        return Advice(f"clients that have {share:.0%} of the classes each, {_WORDS[severity]}", BY_SEVERITY[severity])
    return None


LARGE_SHARE = 0.2
SEVERAL_CLASSES = 3
MANY_CLASSES = 5
FEW_STEPS = 200
SMALL_RATE = 0.1
CLIENT_RATE = 0.5
POISONED_Z_SCORE = 2 * OUTLIER_Z_SCORE

FEDAVG_PAPER = "McMahan et al. 2017, arXiv:1602.05629"
ROBUST_PAPER = "Yin et al. 2018, arXiv:1803.01498"
MOMENTUM_PAPER = "Hsu et al. 2019, arXiv:1909.06335"
ADAPTIVE_PAPER = "Reddi et al. 2021, arXiv:2003.00295"

MOMENTUM = FedAvgMSpec(server_learning_rate=1.0, server_momentum=0.7)
ADAPTIVE = FedAdamSpec(eta=0.1, tau=1e-3, beta_1=0.9, beta_2=0.99)
STEADY = FedYogiSpec(eta=0.1, tau=1e-3, beta_1=0.9, beta_2=0.99)
OWN_HEAD = FedRepSpec()


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        name: For the output.
        source: Where what it proposes was published.
        because: The facts for which it applies, in a sentence; None if it does not apply.
        proposal: What it proposes where it applies.
        by_name: Whether it is silent unless the space holds what it proposes.
    """

    name: str
    source: str
    because: Callable[[RecommendationContext, Diagnosis], str | None]
    proposal: Callable[[RecommendationContext, Diagnosis], StrategySpec]
    by_name: bool = False


def recommend_by_rules(situation: RecommendationContext) -> Recommendation:
    """Return the rules' recommendation.

    Args:
        situation: Has a diagnosis.
    """
    diagnosis = situation.diagnosis
    assert diagnosis is not None, "rules need a diagnosis"
    passed_over: list[Reason] = []
    for rule, because in applying(situation, diagnosis):
        proposal = rule.proposal(situation, diagnosis)
        spec = situation.space.nearest(_at_a_good_rate(proposal, situation))
        if spec is not None:
            return _recommendation(situation, spec, Reason(rule.name, True, because, rule.source), passed_over)
        if rule.by_name:
            continue
        why = situation.space.absent.get(proposal.kind, "it is not among the strategies to choose from")
        passed_over.append(
            Reason(rule.name, False, f"{because} But {proposal.kind} can't be chosen: {why}.", rule.source)
        )
    first = situation.space.kinds[0]
    spec = situation.space.default(first)
    ground = Reason("what is left", True, f"No rule's strategy can be chosen here; {first} can.", spec.paper)
    return _recommendation(situation, spec, ground, passed_over)


def applying(situation: RecommendationContext, diagnosis: Diagnosis) -> Iterator[tuple[Rule, str]]:
    """Yield the rules that apply and why, the deciding one first; where there are no classes no other rule speaks."""
    for rule in RULES:
        because = rule.because(situation, diagnosis)
        if because is not None:
            yield rule, because
            if rule.because is _no_classes:
                return


def _at_a_good_rate(proposal: StrategySpec, situation: RecommendationContext) -> StrategySpec:
    """Return a proposal at a client rate of the rules' own, where that is searched."""
    if "client_learning_rate" not in situation.space.client_ranges:
        return proposal
    return proposal.model_copy(update={"client_learning_rate": CLIENT_RATE})


def _recommendation(
    situation: RecommendationContext, spec: StrategySpec, ground: Reason, passed_over: list[Reason]
) -> Recommendation:
    return Recommendation(
        spec=spec,
        source="rules",
        grounds=(ground, *passed_over),
        notes=(*spec.notes(situation.cohort), *selection_notes(situation)),
        diagnosis=situation.diagnosis,
        alternatives=tuple(alternatives(situation, spec)),
    )


# What the rules look at.


def _outliers(diagnosis: Diagnosis) -> tuple[int, ...]:
    """Return the clients whose models stand out by themselves, where labels are alike and they are the minority."""
    labels = diagnosis.label_skew
    alike = not labels.detected or (labels.value or 0.0) <= (labels.threshold or 0.0)
    clients = diagnosis.outlier.clients
    is_minority = 2 * len(clients) < diagnosis.num_clients
    return clients if diagnosis.outlier.severity == "high" and alike and is_minority else ()


def _with_like_inputs(diagnosis: Diagnosis) -> tuple[int, ...]:
    return tuple(client for client in _outliers(diagnosis) if client not in diagnosis.feature_skew.clients)


def _with_other_inputs(diagnosis: Diagnosis) -> tuple[int, ...]:
    return tuple(client for client in _outliers(diagnosis) if client in diagnosis.feature_skew.clients)


def _share(diagnosis: Diagnosis, clients: tuple[int, ...]) -> float:
    return len(clients) / diagnosis.num_clients


def suspected_in_a_round(situation: RecommendationContext) -> int:
    """Return how many clients of a round a robust strategy should leave out.

    Those are of wrong labels; of other inputs only where uncorrupted data judge, as one model can serve them, too.
    """
    diagnosis = situation.diagnosis
    if diagnosis is None or not diagnosis.num_clients:
        return 0
    suspects = _outliers(diagnosis) if situation.view == "clean" else _with_like_inputs(diagnosis)
    return _in_a_round(suspects, situation, diagnosis)


# When they apply.


def _no_classes(situation: RecommendationContext, diagnosis: Diagnosis) -> str | None:
    if diagnosis.num_classes > 0 and situation.measure.task == "classification":
        return None
    return "The clients hold no rows of classes, on which the other rules were measured."


def _wrong_labels_at_a_fifth(_: RecommendationContext, diagnosis: Diagnosis) -> str | None:
    clients = _with_like_inputs(diagnosis)
    if _share(diagnosis, clients) < LARGE_SHARE:
        return None
    named = diagnosis.names.some_clients(clients)
    return (
        f"The model of {named} is far from the others', with the same inputs and shares of labels: its "
        f"labels are wrong. {_of(clients, diagnosis)} would move a mean far; the median leaves them out."
    )


def _wrong_labels_of_few(_: RecommendationContext, diagnosis: Diagnosis) -> str | None:
    clients = _with_like_inputs(diagnosis)
    if not clients or diagnosis.num_classes >= MANY_CLASSES:
        return None
    named = diagnosis.names.some_clients(clients)
    return (
        f"The model of {named} is far from the others', with the same inputs and shares of labels: its "
        f"labels are wrong. {_of(clients, diagnosis)} are few: a mean without the extremes keeps most of the others."
    )


def _corrupted_and_clean(situation: RecommendationContext, diagnosis: Diagnosis) -> str | None:
    clients = _with_other_inputs(diagnosis)
    if not clients or situation.view != "clean" or _share(diagnosis, clients) < LARGE_SHARE:
        return None
    named = diagnosis.names.some_clients(clients)
    return (
        f"Inputs and model of {named} are far from the others', and uncorrupted data judge: what it "
        "learns there is of no use to them."
    )


def _own_features(situation: RecommendationContext, diagnosis: Diagnosis) -> str | None:
    if diagnosis.feature_skew.severity != "high" or situation.view != "own":
        return None
    return (
        "The clients' features are unlike each other; batch normalisation that stays with its client takes up their "
        "shifts and scales."
    )


def _poisoned_updates(_: RecommendationContext, diagnosis: Diagnosis) -> str | None:
    clients = tuple(client for client in _outliers(diagnosis) if client in diagnosis.clients_of_other_updates)
    if clients:
        named = diagnosis.names.some_clients(clients)
        return (
            f"The model of {named} is far from the others', though inputs and labels are like theirs: "
            "its updates may be poisoned. A geometric median bounds what they do."
        )
    score, features = diagnosis.outlier_z_score, diagnosis.feature_skew.severity
    if not diagnosis.label_skew.detected or features == "high" or score is None or score < POISONED_Z_SCORE:
        return None
    return (
        f"Some model is farther from the others' than skewed labels explain (modified z-score {score:.1f}): updates "
        "may be poisoned. A geometric median bounds what they do, and costs little if they are not."
    )


def _own_concepts(situation: RecommendationContext, diagnosis: Diagnosis) -> str | None:
    clients = tuple(c for c in _with_like_inputs(diagnosis) if c not in diagnosis.clients_of_other_updates)
    if not clients or situation.view != "own":
        return None
    named = diagnosis.names.some_clients(clients)
    return (
        f"The same inputs have other labels at {named}, whose own data judge as well: a last layer of "
        "each client's own, on a body that all train, fits both."
    )


def _own_labels(situation: RecommendationContext, diagnosis: Diagnosis) -> str | None:
    strong = diagnosis.label_skew.severity == "high" and diagnosis.num_classes >= SEVERAL_CLASSES
    if not strong or situation.view != "own":
        return None
    return (
        f"With {diagnosis.num_classes} classes{_skewed(diagnosis)} one model has to serve unlike clients; a last layer "
        "of each client's own, on a body that all train, fits its own classes."
    )


def _few_steps(situation: RecommendationContext, diagnosis: Diagnosis) -> str | None:
    steps = situation.steps_a_round
    if steps is None or steps * situation.num_rounds > FEW_STEPS:
        return None
    if diagnosis.num_classes < MANY_CLASSES and not _are_steps_small(situation):
        return None
    return (
        f"A client makes about {steps * situation.num_rounds} steps in {situation.num_rounds} rounds, few for "
        f"{diagnosis.num_classes} classes{_skewed(diagnosis)}: an adaptive server gets further with them."
    )


def _are_steps_small(situation: RecommendationContext) -> bool:
    """Whether clients train at a small rate that a proposal does not change."""
    rate = situation.space.given["client_learning_rate"]
    return "client_learning_rate" not in situation.space.client_ranges and float(rate) <= SMALL_RATE


def _many_classes(_: RecommendationContext, diagnosis: Diagnosis) -> str | None:
    if diagnosis.num_classes < MANY_CLASSES:
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
        f"Inputs and model of {named} are far from the others': one model can serve both, and momentum "
        "on the server helps it to learn the rarer ones."
    )


def _nothing_to_mend(_: RecommendationContext, diagnosis: Diagnosis) -> str | None:
    found = [name for name in ("label_skew", "feature_skew", "outlier") if getattr(diagnosis, name).detected]
    if not found:
        return "The clients are alike, as far as was measured."
    named = ", ".join(name.replace("_", " ") for name in found)
    return f"Of what was found ({named}) none calls for more than the mean with {diagnosis.num_classes} classes."


def _of(clients: tuple[int, ...], diagnosis: Diagnosis) -> str:
    return f"{len(clients)} of {diagnosis.num_clients}"


def _skewed(diagnosis: Diagnosis) -> str:
    return {"high": " and strong label skew", "low": " and label skew"}.get(diagnosis.label_skew.severity or "", "")


# What they propose.


def _always(spec: StrategySpec) -> Callable[[RecommendationContext, Diagnosis], StrategySpec]:
    return lambda _situation, _diagnosis: spec


def _trimmed_mean(situation: RecommendationContext, diagnosis: Diagnosis) -> StrategySpec:
    """Cut off as many values as there are outliers in a round."""
    return FedTrimmedAvgSpec(beta=cut_of(_in_a_round(_with_like_inputs(diagnosis), situation, diagnosis), situation))


def cut_of(suspects: int, situation: RecommendationContext) -> float:
    """Return the β that cuts off so many values at either end: the middle of those that do, safe from rounding."""
    return min(0.49, (suspects + 0.5) / situation.cohort.num_sampled)


def _in_a_round(clients: tuple[int, ...], situation: RecommendationContext, diagnosis: Diagnosis) -> int:
    """Return how many of some clients a round has, rounded up."""
    return -(-len(clients) * situation.cohort.num_sampled // diagnosis.num_clients)


_FEDAVG = _always(FedAvgSpec())
_MEDIAN = _always(FedMedianSpec())
_MOMENTUM = _always(MOMENTUM)
_ADAPTIVE = _always(ADAPTIVE)

RULES: tuple[Rule, ...] = (
    Rule("no classes", FEDAVG_PAPER, _no_classes, _FEDAVG),
    Rule("features of their own", FedBNSpec.paper, _own_features, _always(FedBNSpec()), by_name=True),
    Rule("poisoned updates", RfaSpec.paper, _poisoned_updates, _always(RfaSpec()), by_name=True),
    Rule("concepts of their own", FedRepSpec.paper, _own_concepts, _always(OWN_HEAD), by_name=True),
    Rule("wrong labels at a fifth", ROBUST_PAPER, _wrong_labels_at_a_fifth, _MEDIAN),
    Rule("wrong labels, few classes", ROBUST_PAPER, _wrong_labels_of_few, _trimmed_mean),
    Rule("corrupted, clean view", ROBUST_PAPER, _corrupted_and_clean, _MEDIAN),
    Rule("labels of their own", FedRepSpec.paper, _own_labels, _always(OWN_HEAD), by_name=True),
    Rule("few steps", ADAPTIVE_PAPER, _few_steps, _ADAPTIVE),
    Rule("many classes", ADAPTIVE_PAPER, _many_classes, _always(STEADY)),
    Rule("skewed labels", MOMENTUM_PAPER, _skewed_labels, _MOMENTUM),
    Rule("other inputs", MOMENTUM_PAPER, _other_inputs, _MOMENTUM),
    Rule("nothing to mend", FEDAVG_PAPER, _nothing_to_mend, _FEDAVG),
)


EXPLORING = 4
"""One of so many configurations of a generation is drawn."""
DRAWS = 1000
DRAWN = "Drawn, to explore."
"""The reason of what nothing is known of."""

ROBUST = (BulyanSpec, CenteredClippingSpec, FedMedianSpec, FedTrimmedAvgSpec, KrumSpec, MultiKrumSpec, RfaSpec)


def first_generation(
    situation: RecommendationContext,
    recommendation: Recommendation,
    size: int,
    seed: int,
    references: Sequence[StrategySpec] = (),
    priors: Sequence[Alternative] = (),
) -> tuple[Alternative, ...]:
    """Return what to try first, best founded first.

    Args:
        situation: Has a diagnosis.
        recommendation: The rules' answer to it.
        size: Configurations in a generation; fewer are returned where the space holds no more.
        seed: Of what is drawn, another one for each federation.
        references: Trained outside the budget, never proposed.
        priors: What did well in like federations.
    """
    num_drawn = max(1, size // EXPLORING) if size > 1 else 0
    taken = {situation.space.digest(spec) for spec in references}
    source = _by_policies_in_turn(_founded(situation, recommendation, priors), situation)
    founded = _new(source, size - num_drawn, situation, taken)
    return (*founded, *_new(_drawn(situation, seed), size - len(founded), situation, taken))


def kinds_in_turn(situation: RecommendationContext, seed: int) -> tuple[StrategySpec, ...]:
    """Return one configuration of each kind of the space, drawn and in drawn order, robust ones as suspected.

    Args:
        situation: Has a diagnosis.
        seed: Of what is drawn.
    """
    found: dict[str, StrategySpec] = {}
    for drawn in _drawn(situation, seed, "kinds in turn"):
        found.setdefault(drawn.spec.label, drawn.spec)
        if len(found) == len(situation.space.kinds):
            break
    return tuple(found.values())


def _new(
    source: Iterator[Alternative], count: int, situation: RecommendationContext, taken: set[str]
) -> list[Alternative]:
    """Return the first of a source that are not taken, at most so many, which are taken from then on."""
    found: list[Alternative] = []
    while len(found) < count and (candidate := next(source, None)) is not None:
        digest = situation.space.digest(candidate.spec)
        if digest not in taken and not situation.space.is_twin(candidate.spec):
            taken.add(digest)
            found.append(candidate)
    return found


def _founded(
    situation: RecommendationContext, recommendation: Recommendation, priors: Sequence[Alternative]
) -> Iterator[Alternative]:
    """Yield what the diagnosis proposes, repetitions included; each is in the space."""
    diagnosis, space = situation.diagnosis, situation.space
    assert diagnosis is not None, "rules need a diagnosis"
    suspects = suspected_in_a_round(situation)
    ground = recommendation.grounds[0]
    yield Alternative(recommendation.spec, ground.because, ground.source)
    yield from (fitting for each in priors if (fitting := _as_suspected(each, suspects, situation)) is not None)
    proposals = [
        (rule.proposal(situation, diagnosis), because, rule.source) for rule, because in applying(situation, diagnosis)
    ]
    if suspects:
        because = f"{suspects} of {situation.cohort.num_sampled} clients a round are suspected."
        left = situation.cohort.num_sampled - suspects
        robust = (MultiKrumSpec(num_malicious_nodes=suspects, num_nodes_to_select=left), FedMedianSpec())
        trimmed = FedTrimmedAvgSpec(beta=cut_of(suspects, situation))
        proposals += [(spec, because, spec.paper) for spec in (trimmed, *robust)]
    often = "It often gains where steps are small or clients differ."
    usual = (ADAPTIVE, OWN_HEAD, MOMENTUM) if situation.view == "own" else (ADAPTIVE, MOMENTUM)
    if situation.measure.task == "classification":
        proposals += [(spec, often, spec.paper) for spec in usual]
    proposals += [(each.spec, each.because, each.source) for each in recommendation.alternatives]
    for spec, because, source in proposals:
        if (nearest := space.nearest(spec)) is not None:
            yield Alternative(nearest, because, source)


def _by_policies_in_turn(source: Iterator[Alternative], situation: RecommendationContext) -> Iterator[Alternative]:
    policies = situation.space.client_ranges.get(SELECTION)
    if not isinstance(policies, ChoiceRange):
        yield from source
        return
    turns, seen = cycle(policies.choices), set()
    for candidate in source:
        if (digest := situation.space.digest(candidate.spec)) not in seen:
            seen.add(digest)
            yield replace(candidate, spec=candidate.spec.with_values({SELECTION: next(turns)}))


def _drawn(
    situation: RecommendationContext, seed: int, purpose: str = "informed first generation"
) -> Iterator[Alternative]:
    """Yield random configurations; no robust one unless somebody is suspected, and then with as many."""
    generator = stream(seed, purpose)
    suspects = suspected_in_a_round(situation)
    for _ in range(DRAWS):
        spec = situation.space.random(generator)
        drawn = _as_suspected(Alternative(spec, DRAWN, spec.paper), suspects, situation)
        if drawn is not None:
            yield drawn


def _as_suspected(proposed: Alternative, suspects: int, situation: RecommendationContext) -> Alternative | None:
    """Return what is proposed, a robust strategy with so many suspects; None where there are none for it."""
    if not isinstance(proposed.spec, ROBUST):
        return proposed
    spec = _against(suspects, proposed.spec, situation) if suspects else None
    return None if spec is None else replace(proposed, spec=spec)


def _against(suspects: int, spec: StrategySpec, situation: RecommendationContext) -> StrategySpec | None:
    """Return a robust configuration that leaves out so many clients a round, as far as its range allows."""
    wanted = {"num_malicious_nodes": suspects, "beta": cut_of(suspects, situation)}
    known = {name: value for name, value in wanted.items() if name in type(spec).model_fields}
    return situation.space.nearest(spec.model_copy(update=known))
