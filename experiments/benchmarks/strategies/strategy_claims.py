"""What the papers claim, each as an ordering on a federation where it should show; a new claim is a line here.

A claim of a strategy that the table of strategies does not have, or that was not asked for, is not tested. Claims of
no ordering are not here: q-FFL's is about the spread over clients, differential privacy's about privacy, and training
alone, the control, has none.

Rules that are told how many attack are told the truth where they should hold, as in their papers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from fedscout.search.confirmation.intervals import PairedDifference
from fedscout.strategies import STRATEGIES, StrategySpec, Value, parse_strategy

Verdict = Literal["seen", "within noise", "not seen"]


@dataclass(frozen=True)
class Claim:
    """One strategy is more accurate than another on a federation.

    Attributes:
        strategy: Its kind.
        federation: Of the battery.
        why: What the paper says, in a few words.
        than: The other's kind.
        told: Parameters of the one that are not at their defaults.
    """

    strategy: str
    federation: str
    why: str
    than: str = "fedavg"
    told: Mapping[str, Value] = field(default_factory=dict)

    @property
    def is_testable(self) -> bool:
        """Whether the table of strategies has both."""
        return {self.strategy, self.than} <= STRATEGIES.keys()

    def specs(self) -> tuple[StrategySpec, StrategySpec]:
        """Return the one and the other, which the table must have."""
        return parse_strategy({"kind": self.strategy, **self.told}), parse_strategy(self.than)


_ATTACKED = "holds with a fifth of attackers"
_TOLD = {"num_malicious_nodes": 3}

CLAIMS: tuple[Claim, ...] = (
    Claim("scaffold", "unequal_steps", "control variates take out the drift of clients, however long they train"),
    Claim("fednova", "unequal_steps", "normalised updates take out the bias towards clients of many steps"),
    Claim("fedprox", "unequal_steps", "a proximal term keeps unequal local work together"),
    Claim("feddyn", "dirichlet_0.1", "dynamic regularisation has clients agree on one minimum"),
    Claim("moon", "dirichlet_0.1", "representations close to the global model's take out the drift of label skew"),
    Claim("fedlc", "dirichlet_0.1", "logits calibrated by class counts spare the classes that a client lacks"),
    Claim("fedrs", "dirichlet_0.1", "restricted softmax spares the classes that a client lacks"),
    Claim("fedsam", "dirichlet_0.1", "flat minima of clients lie closer together"),
    Claim("fedexp", "dirichlet_0.1", "longer server steps where clients disagree"),
    Claim("fedavgm", "dirichlet_0.1", "server momentum under label skew"),
    Claim("fedadagrad", "dirichlet_0.1", "an adaptive server under label skew"),
    Claim("fedadam", "dirichlet_0.1", "an adaptive server under label skew"),
    Claim("fedyogi", "dirichlet_0.1", "an adaptive server under label skew"),
    Claim("fedper", "dirichlet_0.1", "heads of their own under label skew"),
    Claim("fedrep", "dirichlet_0.1", "heads of their own under label skew"),
    Claim("fedbabu", "dirichlet_0.1", "a shared body, and heads that are tuned at home"),
    Claim("fedrod", "dirichlet_0.1", "a second head that is personal"),
    Claim("pfedme", "dirichlet_0.1", "personal models by a Moreau envelope"),
    Claim("fine_tuning", "dirichlet_0.1", "the global model, tuned at home before it is used"),
    Claim("fedbn", "feature_scale", "batch normalisation at home takes out a shift of features"),
    Claim("mfedbn", "feature_scale", "a server rate around FedBN", than="fedbn"),
    Claim("ditto", "two_concepts", "models of their own where clients' concepts conflict"),
    Claim(
        "communities",
        "two_concepts",
        "clients of one concept are found by the directions of their updates",
        told={"grouped_by": "updates"},
    ),
    Claim("fedmedian", "attackers", _ATTACKED),
    Claim("fedtrimmedavg", "attackers", _ATTACKED),
    Claim("krum", "attackers", _ATTACKED, told=_TOLD),
    Claim("multikrum", "attackers", _ATTACKED, told={**_TOLD, "num_nodes_to_select": 12}),
    Claim("bulyan", "attackers", _ATTACKED, told=_TOLD),
    Claim("rfa", "attackers", _ATTACKED),
    Claim("centered_clipping", "attackers", _ATTACKED),
    Claim("feddf", "few_rounds", "distillation of the ensemble needs fewer rounds"),
    Claim("symmetric_loss", "noisy_labels", "a reverse cross-entropy bounds what a wrong label pulls"),
    Claim("rhfl", "noisy_labels", "a loss that bounds wrong labels, and more heed to clients that learn well"),
    Claim("fedbio", "noisy_labels", "a few rows that are known to be right weigh clients of wrong labels down"),
)


def claims_about(federation: str, kinds: Iterable[str]) -> list[Claim]:
    """Return the claims to be tested on a federation where strategies of these kinds are measured."""
    asked = {*kinds}
    return [
        claim for claim in CLAIMS if claim.federation == federation and claim.strategy in asked and claim.is_testable
    ]


def verdict_of(difference: PairedDifference) -> Verdict:
    """Return whether an ordering was seen; `not seen` is the other way round, beyond noise."""
    if difference.verdict == 0:
        return "within noise"
    return "seen" if difference.verdict > 0 else "not seen"
