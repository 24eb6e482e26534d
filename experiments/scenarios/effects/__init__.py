"""Effects: what can be done to some clients on top of any partition, one after the other."""

from experiments.scenarios.effects.effect import EffectPlan, EffectRequest, ScenarioEffect
from experiments.scenarios.effects.stack import stack_effects
from experiments.scenarios.effects.table import EFFECTS

__all__ = ["EFFECTS", "EffectPlan", "EffectRequest", "ScenarioEffect", "stack_effects"]
