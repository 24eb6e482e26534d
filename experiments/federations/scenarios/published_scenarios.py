"""The published scenarios: how rows are dealt, and a list of effects. A new one is an entry here.

Published for four clients of a bearing data set with a binary label; noise is in units of the standardised feature.
One affected client is the third, or the last of fewer. What `label_skew` does for other numbers of clients and classes
is in its file; the four noises of `feature_skew` repeat in turn for more clients.

Those of X. Chang et al., "FLASH: Federated Learning Across Simultaneous Heterogeneities", arXiv:2402.08769, 2024, are
for any number of clients, there 50: 30 % of them skewed, 80 % of their rows of one class; labels wrong at a rate of
each client's own from Beta(15, 85); and both. All clients have latency, lat_i(t) = α n_i + an exponential time of mean
λ n_i with n_i rows, drawn anew each round: α = 1, and of its λ of 1, 10 and 100 the middle one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.experiments.federations.partitions.partition_request import Deal, Partitioner, PartitionRequest
from fedscout.experiments.federations.partitions.random_rows import iid
from fedscout.experiments.federations.scenarios.availability_effects import LatencyEffect
from fedscout.experiments.federations.scenarios.class_skew import ClassSkewEffect
from fedscout.experiments.federations.scenarios.effect import EffectRequest, ScenarioEffect, ScenarioPlan
from fedscout.experiments.federations.scenarios.feature_effects import FeatureNoiseEffect
from fedscout.experiments.federations.scenarios.label_effects import CorruptedEffect, LabelFlipEffect, PoisoningEffect
from fedscout.experiments.federations.scenarios.label_skew import label_skew
from fedscout.experiments.federations.scenarios.stack import stack_effects


@dataclass(frozen=True)
class PublishedScenario:
    """A scenario that is chosen by its name.

    Attributes:
        name: What the user writes.
        effects: In order; without a choice of clients, each is for the one that is affected.
        in_turn: Whether they are for all clients in turn instead: of J effects the j-th for clients j, j + J, …
        dealt: How rows are dealt.
    """

    name: str
    effects: tuple[ScenarioEffect, ...] = ()
    in_turn: bool = False
    dealt: Partitioner = iid

    def deal(self, request: PartitionRequest) -> Deal:
        """Deal the rows.

        Raises:
            ConfigurationError: If rows are tokens, which noise would make meaningless.
            DataError: If the rows do not allow it.
        """
        if request.data_kind == "tokens" and any(effect.needs_measurements for effect in self.effects):
            raise ConfigurationError(
                Fault(
                    f"federation.scenario={self.name}",
                    "be used on data whose features are measurements, as it adds noise to them",
                    "tokens, which are numbers of words or characters",
                )
            )
        return self.dealt(request)

    def plan(self, deal: Deal, request: EffectRequest) -> ScenarioPlan:
        """Return what is done to the clients of a deal; a client that any effect is for counts as affected."""
        effects = self.effects
        if self.in_turn:
            turns = [tuple(range(turn, request.num_clients, len(effects))) for turn in range(len(effects))]
            effects = tuple(
                effect.model_copy(update={"clients": clients})
                for effect, clients in zip(effects, turns, strict=True)
                if clients
            )
        plan = stack_effects(effects, request)
        affected = {*deal.affected_clients, *plan.affected_clients, *plan.transforms}
        return replace(plan, affected_clients=tuple(sorted(affected)), facts=plan.facts if effects else {})


BEARING_SCENARIOS: Mapping[str, PublishedScenario] = {
    scenario.name: scenario
    for scenario in (
        PublishedScenario("iid"),
        PublishedScenario("label_skew", dealt=label_skew),
        PublishedScenario(
            "feature_skew",
            (
                FeatureNoiseEffect(std=0.1),
                FeatureNoiseEffect(std=0.5),
                FeatureNoiseEffect(mean=1.0, std=0.1),
                FeatureNoiseEffect(mean=-0.1, std=0.1),
            ),
            in_turn=True,
        ),
        PublishedScenario("noisy_labels", (LabelFlipEffect(rate=0.3),)),
        PublishedScenario("label_poisoning", (PoisoningEffect(),)),
        PublishedScenario("corrupted_client", (CorruptedEffect(),)),
    )
}

_SKEWED = ClassSkewEffect(clients=0.3, share=0.8)
_NOISY = LabelFlipEffect(clients="all", alpha=15, beta=85)
_SLOW = LatencyEffect(clients="all", shift_seconds=1, mean_seconds=10, per_row=True)

FLASH_SCENARIOS: Mapping[str, PublishedScenario] = {
    scenario.name: scenario
    for scenario in (
        PublishedScenario("flash_skew", (_SKEWED, _SLOW)),
        PublishedScenario("flash_noise", (_NOISY, _SLOW)),
        PublishedScenario("flash_both", (_SKEWED, _NOISY, _SLOW)),
    )
}

SCENARIOS: Mapping[str, PublishedScenario] = {**BEARING_SCENARIOS, **FLASH_SCENARIOS}
