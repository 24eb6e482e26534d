"""What an informed search begins with: what the diagnosis proposes, a stated share of exploration, kinds for later.

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
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle

from fedscout.engine.seeds import stream
from fedscout.search.recommenders.recommendation import Alternative, Recommendation, Situation
from fedscout.search.recommenders.rules import ADAPTIVE, MOMENTUM, OWN_HEAD, applying, cut_of, suspected_in_a_round
from fedscout.strategies import (
    BulyanSpec,
    CenteredClippingSpec,
    ChoiceRange,
    FedMedianSpec,
    FedTrimmedAvgSpec,
    KrumSpec,
    MultiKrumSpec,
    RfaSpec,
    StrategySpec,
)
from fedscout.strategies.specification import SELECTION

EXPLORING = 4
"""One of so many configurations of a generation is drawn."""
DRAWS = 1000
DRAWN = "Drawn, to explore."
"""The reason of what nothing is known of."""

ROBUST = (BulyanSpec, CenteredClippingSpec, FedMedianSpec, FedTrimmedAvgSpec, KrumSpec, MultiKrumSpec, RfaSpec)


def first_generation(
    situation: Situation,
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


def kinds_in_turn(situation: Situation, seed: int) -> tuple[StrategySpec, ...]:
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


def _new(source: Iterator[Alternative], count: int, situation: Situation, taken: set[str]) -> list[Alternative]:
    """Return the first of a source that are not taken, at most so many, which are taken from then on."""
    found: list[Alternative] = []
    while len(found) < count and (candidate := next(source, None)) is not None:
        digest = situation.space.digest(candidate.spec)
        if digest not in taken and not situation.space.is_twin(candidate.spec):
            taken.add(digest)
            found.append(candidate)
    return found


def _founded(
    situation: Situation, recommendation: Recommendation, priors: Sequence[Alternative]
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


def _by_policies_in_turn(source: Iterator[Alternative], situation: Situation) -> Iterator[Alternative]:
    policies = situation.space.client_ranges.get(SELECTION)
    if not isinstance(policies, ChoiceRange):
        yield from source
        return
    turns, seen = cycle(policies.choices), set()
    for candidate in source:
        if (digest := situation.space.digest(candidate.spec)) not in seen:
            seen.add(digest)
            yield replace(candidate, spec=candidate.spec.with_values({SELECTION: next(turns)}))


def _drawn(situation: Situation, seed: int, purpose: str = "informed first generation") -> Iterator[Alternative]:
    """Yield random configurations; no robust one unless somebody is suspected, and then with as many."""
    generator = stream(seed, purpose)
    suspects = suspected_in_a_round(situation)
    for _ in range(DRAWS):
        spec = situation.space.random(generator)
        drawn = _as_suspected(Alternative(spec, DRAWN, spec.paper), suspects, situation)
        if drawn is not None:
            yield drawn


def _as_suspected(proposed: Alternative, suspects: int, situation: Situation) -> Alternative | None:
    """Return what is proposed, a robust strategy with so many suspects; None where there are none for it."""
    if not isinstance(proposed.spec, ROBUST):
        return proposed
    spec = _against(suspects, proposed.spec, situation) if suspects else None
    return None if spec is None else replace(proposed, spec=spec)


def _against(suspects: int, spec: StrategySpec, situation: Situation) -> StrategySpec | None:
    """Return a robust configuration that leaves out so many clients a round, as far as its range allows."""
    wanted = {"num_malicious_nodes": suspects, "beta": cut_of(suspects, situation)}
    known = {name: value for name, value in wanted.items() if name in type(spec).model_fields}
    return situation.space.nearest(spec.model_copy(update=known))
