"""What selection policies are compared on: the source's Table I at a smaller scale, and its ablations.

The source (X. Chang et al.: FLASH: Federated Learning Across Simultaneous Heterogeneities, arXiv:2402.08769, 2024)
crosses eight policies with seven aggregations under three heterogeneities, 10 of 50 clients a round, ResNet-18, five
local epochs of Adam, up to 1,500 rounds. Here a dense net makes five local epochs of SGD in 60 rounds, on digits that
come with the program, or on a sample of Fashion-MNIST. As SGD is plain, SCAFFOLD and FedNova are exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.benchmarks.choice.choice_battery import FederationCase
from fedscout.strategies import SelectionSpec, parse_selection, parse_strategy

Loss = Literal["plain", "robust"]

ALPHA, BETA = 0.1, 4.0
"""Weights of the robust loss: the first pair that the source studies."""

ROBUST = (f"training.pseudo_label_weight={ALPHA:g}", f"training.reverse_weight={BETA:g}")

POLICIES = ("random", "oort", "pyramidfl", "restless", "neural", "fedcor", "feel", "flash")
"""In the order of the source's table."""

AGGREGATIONS = ("fedavg", "fedprox", "fedbio", "feddf", "fednova", "scaffold", "rhfl")

PUBLISHED: Mapping[str, Mapping[str, float]] = {
    "skew": dict(zip(POLICIES, (64.8, 67.2, 68.4, 64.7, 69.6, 70.8, 67.4, 71.8), strict=True)),
    "noise": dict(zip(POLICIES, (60.8, 66.3, 66.0, 61.1, 67.1, 67.9, 64.7, 70.9), strict=True)),
    "both": dict(zip(POLICIES, (49.8, 55.4, 54.3, 49.9, 54.5, 55.9, 54.6, 59.4), strict=True)),
}
"""Percent, the means of the source's rows over its aggregations; FedCor's cells under both average 55.7."""

_COMMON = (
    "federation.num_clients=50",
    "federation.server_rows=0.05",
    "federation.server_labels=true",
    "training.fraction_train=0.2",
    "training.num_rounds=60",
    "training.local_epochs=5",
    "training.batch_size=16",
    "training.learning_rate=0.1",
    "model.kind=dense",
    "model.hidden=[64]",
)
DATA: Mapping[str, tuple[str, ...]] = {
    "digits": ("federation.dataset=digits",),
    "fashion_mnist": ("federation.dataset=fashion_mnist", "federation.max_rows=6000"),
}
SCENARIOS: Mapping[str, str] = {"skew": "flash_skew", "noise": "flash_noise", "both": "flash_both"}


def _stacked(skewed: float, noise: int) -> str:
    """Return a share of skewed clients, label noise by Beta(a, 100 − a), and the source's latency, as a scenario."""
    effects = [f"{{kind: class_skew, clients: {skewed:g}}}"] if skewed else []
    effects += [f"{{kind: label_flip, clients: all, alpha: {noise}, beta: {100 - noise}}}"] if noise else []
    effects += ["{kind: latency, clients: all, shift_seconds: 1, mean_seconds: 10, per_row: true}"]
    return f"[{', '.join(effects)}]"


GRID: Mapping[str, str] = {
    f"{skewed:.0%} skewed, noise {noise}": _stacked(skewed, noise)
    for skewed in (0.0, 0.3, 0.6)
    for noise in (0, 15, 25)
}
"""As the source's Figures 2 and 3: share of skewed clients by a of the label noise, in percent."""

SPEED = "skew, devices unlike"
"""The source draws durations anew each round, so nobody can know who is slow. Here devices are: a step takes each its
own time, log-normal with σ = 1."""

STACKED: Mapping[str, str] = {
    **GRID,
    SPEED: "[{kind: class_skew, clients: 0.3}, {kind: devices, clients: all, seconds_per_step: 1, sigma: 1}]",
}


def case_of(data: str, heterogeneity: str) -> FederationCase:
    """Return a federation of the battery.

    Raises:
        ConfigurationError: If there is none of that name.
    """
    if data not in DATA:
        raise ConfigurationError(f"--dataset must be of {', '.join(DATA)}, got {data!r}")
    scenario: tuple[str, ...]
    if heterogeneity in STACKED:
        scenario = ("federation.partition.kind=iid", f"federation.scenario={STACKED[heterogeneity]}")
    elif heterogeneity in SCENARIOS:
        scenario = (f"federation.scenario={SCENARIOS[heterogeneity]}",)
    else:
        raise ConfigurationError(f"--heterogeneities must be of {', '.join(SCENARIOS)}, got {heterogeneity!r}")
    return FederationCase(heterogeneity, (*DATA[data], *scenario, *_COMMON), needs_files=data != "digits")


@dataclass(frozen=True)
class Row:
    """A policy with the loss on which its clients descend.

    Attributes:
        name: In the tables.
        policy: Kind and parameters.
        loss: The clients'.
        learning_rate: The clients'; None is the battery's.
    """

    name: str
    policy: Mapping[str, Any]
    loss: Loss = "plain"
    learning_rate: float | None = None

    @property
    def settings(self) -> tuple[str, ...]:
        """Arguments of its trainings, beside those of the federation."""
        rate = () if self.learning_rate is None else (f"training.learning_rate={self.learning_rate:g}",)
        return (*(ROBUST if self.loss == "robust" else ()), *rate)

    def spec(self, cohort: Cohort) -> SelectionSpec:
        """Return the policy.

        Raises:
            StrategyError: If it can't choose in a cohort.
        """
        return parse_selection(self.policy, cohort)


@dataclass(frozen=True)
class Part:
    """A table of the benchmark: rows by strategies, on some heterogeneities.

    Attributes:
        title: For people.
        rows: The last is the one that the others are compared with.
        strategies: Their kinds.
        heterogeneities: Names.
        published: Whether the source's table stands beside it.
    """

    title: str
    rows: tuple[Row, ...]
    strategies: tuple[str, ...] = AGGREGATIONS
    heterogeneities: tuple[str, ...] = ("skew", "noise", "both")
    published: bool = False


def _row(kind: str, loss: Loss, **parameters: Any) -> Row:
    told = ", ".join(f"{name}={value}" for name, value in parameters.items())
    name = f"{kind} ({told})" if told else kind
    return Row(name + (", robust loss" if loss == "robust" else ""), {"kind": kind, **parameters}, loss)


def _at_rates(row: Row, *rates: float) -> tuple[Row, ...]:
    return tuple(replace(row, name=f"{row.name}, rate {rate:g}", learning_rate=rate) for rate in rates)


_CONTEXTS = ("training", "validation", "duration", "reward")
_FLASH = _row("flash", "robust")

PARTS: Mapping[str, Part] = {
    "table": Part(
        "Rivals with the plain loss, FLASH with the robust one",
        (*(_row(kind, "plain") for kind in POLICIES[:-1]), _FLASH),
        published=True,
    ),
    "robust": Part(
        "All with the robust loss", (*(_row(kind, "robust") for kind in POLICIES[:-1]), _FLASH), published=True
    ),
    "halves": Part(
        "The bandit alone, the loss alone, both, and power-of-choice",
        (
            _row("random", "plain"),
            _row("flash", "plain"),
            _row("random", "robust"),
            _row("power_of_choice", "plain"),
            _row("power_of_choice", "robust"),
            _FLASH,
        ),
        ("fedavg", "fedprox", "scaffold"),
    ),
    "bandits": Part(
        "Another bandit inside FLASH",
        (_row("flash", "robust", bandit="neural"), _row("flash", "robust", bandit="restless"), _FLASH),
        ("fedavg", "fedprox", "scaffold"),
    ),
    "contexts": Part(
        "Contexts left out one by one",
        (
            *(
                Row(
                    f"flash without {left_out}, robust loss",
                    {"kind": "flash", "contexts": [name for name in _CONTEXTS if name != left_out]},
                    "robust",
                )
                for left_out in _CONTEXTS
            ),
            _FLASH,
        ),
        ("fedavg",),
    ),
    "speed": Part(
        "Where some devices are slow for good",
        (
            *(_row(kind, "plain") for kind in ("random", "oort", "pyramidfl", "feel", "fedcor", "power_of_choice")),
            _row("flash", "plain"),
        ),
        ("fedavg", "scaffold"),
        (SPEED,),
    ),
    "rates": Part(
        "Each at other client rates",
        (
            *_at_rates(_row("random", "plain"), 0.1, 0.2, 0.4, 0.8),
            *_at_rates(_row("random", "robust"), 0.1, 0.2, 0.4),
            *_at_rates(_row("oort", "plain"), 0.4, 0.8),
            *_at_rates(_FLASH, 0.1, 0.4, 0.2),
        ),
        ("fedavg",),
    ),
    "grid": Part("FLASH beside FedCor", (_row("fedcor", "plain"), _FLASH), ("fedavg",), tuple(GRID)),
}
"""By the name of `--part`."""

OTHERS = ("regret", "cost")
"""Parts that compare no accuracies: `planted_regret.py`, `policy_cost.py`."""


def part_of(
    name: str,
    policies: Sequence[str] | None = None,
    strategies: Sequence[str] | None = None,
    heterogeneities: Sequence[str] | None = None,
) -> Part:
    """Return a part, or what is asked for of it.

    Args:
        name: Of the part.
        policies: Kinds; None is all of the part's. What the others are compared with stays.
        strategies: Kinds, also others than the part's; None is all of the part's.
        heterogeneities: Names of the part's, also cut at their commas, as a list on the command line is; None is all.

    Raises:
        UserError: If there is no such part or strategy, or the part has no such row or heterogeneity.
    """
    if name not in PARTS:
        raise ConfigurationError(f"--part must be one of {', '.join((*PARTS, *OTHERS))}, got {name!r}")
    part = PARTS[name]
    kinds = sorted({str(row.policy["kind"]) for row in part.rows})
    if unknown := [kind for kind in policies or () if kind not in kinds]:
        raise ConfigurationError(f"--policies must be of {', '.join(kinds)} in {name}, got {unknown[0]!r}")
    for kind in strategies or ():
        if not isinstance(kind, str):
            raise ConfigurationError(f"--strategies must be kinds such as {', '.join(part.strategies)}, got {kind!r}")
        parse_strategy(kind)
    rows = [row for row in part.rows[:-1] if policies is None or row.policy["kind"] in policies]
    return replace(
        part,
        rows=(*rows, part.rows[-1]),
        strategies=part.strategies if strategies is None else tuple(strategies),
        heterogeneities=part.heterogeneities
        if heterogeneities is None
        else _named(heterogeneities, part.heterogeneities, name),
    )


def _named(pieces: Sequence[str], names: tuple[str, ...], part: str) -> tuple[str, ...]:
    """Return the names of which these are the pieces between commas.

    Raises:
        ConfigurationError: If a piece belongs to none.
    """
    found: list[str] = []
    left = [str(piece) for piece in pieces]
    while left:
        ends = [end for end in range(1, len(left) + 1) if ", ".join(left[:end]) in names]
        if not ends:
            told = "; ".join(names)
            raise ConfigurationError(f"--heterogeneities must be of {told} in {part}, got {', '.join(left)!r}")
        found.append(", ".join(left[: ends[-1]]))
        left = left[ends[-1] :]
    return tuple(found)
