"""The federations of the published table: forty-four, half of them of data sets that no rule or default was set on.

Each trains fifteen rounds of one epoch at client rate 0.1 unless a configuration says otherwise, on so few rows that a
training takes a part of a second. They differ in data (tables, digits, pictures, tweets), in number of clients (4 to
100), and in what is wrong with them: skewed labels, scaled or noisy features, two concepts, wrong labels, attackers,
clients that drop out or are not asked.

Whoever sets a rule, a default or a prior after a look at a held-out data set moves it to the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.experiments.benchmarks.choice.choice_battery import FederationCase

Half = Literal["development", "held out"]

COMMON = ("training.num_rounds=15", "training.learning_rate=0.1")
SPACE = (
    "search.client_ranges.learning_rate={low: 0.02, high: 1.0, log: true}",
    "search.client_ranges.local_epochs={low: 1, high: 3}",
    "search.client_ranges.batch_size={low: 8, high: 32, log: true}",
)
"""The clients' part of the joint space; strategies and their parameters are the default ones."""


@dataclass(frozen=True)
class JointFederation:
    """One federation of the table: its arguments, and the half to which its data set belongs."""

    case: FederationCase
    half: Half

    @property
    def name(self) -> str:
        """For people and as the key of the table."""
        return self.case.name


@dataclass(frozen=True)
class _Data:
    """A data set of one half, with what all its federations share."""

    half: Half
    name: str
    arguments: tuple[str, ...]
    needs_files: bool = True

    def dealt(self, how: str, clients: int, *arguments: str) -> JointFederation:
        """Return a federation of it.

        Args:
            how: A number is the α of Dirichlet's label skew; a name of `PUBLISHED` or `DEALT` says what is dealt; words
                say what `arguments` make of an IID partition.
            clients: How many.
            arguments: The rest.
        """
        named = how.replace("_", " ")
        dealt: tuple[str, ...] = ("federation.partition.kind=iid",)
        if how.replace(".", "").isdigit():
            dealt, named = (f"federation.partition.alpha={how}",), f"Dirichlet {how}"
        elif how in PUBLISHED:
            dealt = (f"federation.scenario={how}",)
        elif how in DEALT:
            dealt = DEALT[how]
        given = (*COMMON, *self.arguments, f"federation.num_clients={clients}", *dealt, *arguments)
        asked = ", a fifth a round" if PARTIAL in arguments else ""
        name = f"{self.name}, {named}, {clients} clients{asked}"
        return JointFederation(FederationCase(name, given, self.needs_files), self.half)


PUBLISHED = ("label_skew", "feature_skew", "noisy_labels", "label_poisoning", "corrupted_client")
DEALT: Mapping[str, tuple[str, ...]] = {
    "class pairs": (
        "federation.partition.kind=pathological",
        "federation.partition.classes_per_client=1",
        "federation.partition.class_assignment=deterministic",
    ),
    "by colour": ("federation.client_column=color",),
    "by hospital": ("federation.partition.kind=natural",),
    "other amounts": ("federation.partition.kind=quantity_skew", "federation.partition.alpha=0.5"),
}

PARTIAL = "training.fraction_train=0.2"
DROPOUT = "federation.scenario={kind: dropout, clients: all, probability: 0.3}"
FLIPPED = "federation.scenario={kind: sign_flip, clients: 0.2, factor: 4}"
NORM = "model.norm=batch"


def _scales(clients: int) -> str:
    factors = (0.2, 0.5, 1, 2, 5)
    effects = ", ".join(
        f"{{kind: feature_scale, clients: {[*range(place, clients, len(factors))]}, factor: {factor:g}}}"
        for place, factor in enumerate(factors)
    )
    return f"federation.scenario=[{effects}]"


def _concepts(clients: int) -> str:
    shifted = [*range(clients // 2, clients)]
    return f"federation.scenario={{kind: concept_shift, clients: {shifted}, permutation: [1,0,3,2,5,4,7,6,9,8]}}"


def _of(half: Half, data: str, *arguments: str, files: bool = True) -> _Data:
    return _Data(half, data, (f"federation.dataset={data}", *arguments), files)


_SMALL = ("model.kind=dense", "model.hidden=[32]")

DIGITS = _of("development", "digits", *_SMALL, files=False)
CANCER = _of("development", "breast_cancer", files=False)
WINE = _of("development", "wine", files=False)
BEARING = _of("development", "bearing")
QUALITY = _of("development", "wine_quality", "federation.max_rows=1500")
HEART = _of("held out", "heart")
FLOWS = _of("held out", "unsw_nb15", "federation.max_rows=1500")
ATTACKS = _of("held out", "unsw_nb15", "federation.label=attack_cat", "federation.max_rows=1500")
CLOTHES = _of("held out", "fashion_mnist", "federation.max_rows=1200", *_SMALL)
PICTURES = _of("held out", "cifar10", "federation.max_rows=1200", *_SMALL)
TWEETS = _of("held out", "sentiment140", "federation.max_rows=300", "model.kind=textcnn")

JOINT_BATTERY: tuple[JointFederation, ...] = (
    DIGITS.dealt("0.1", 10),
    DIGITS.dealt("0.1", 20),
    DIGITS.dealt("0.5", 20),
    DIGITS.dealt("0.3", 50, PARTIAL),
    DIGITS.dealt("1", 100),
    DIGITS.dealt("0.3", 50),
    DIGITS.dealt("iid", 10),
    DIGITS.dealt("class pairs", 20),
    DIGITS.dealt("other amounts", 10),
    DIGITS.dealt("features scaled", 10, NORM, _scales(10)),
    DIGITS.dealt("two concepts", 10, _concepts(10)),
    DIGITS.dealt("drop-outs", 10, DROPOUT),
    DIGITS.dealt("attackers", 15, FLIPPED),
    DIGITS.dealt("label_poisoning", 10),
    DIGITS.dealt("corrupted_client", 5),
    CANCER.dealt("0.1", 10),
    CANCER.dealt("noisy_labels", 6),
    WINE.dealt("0.1", 6),
    WINE.dealt("feature_skew", 4),
    BEARING.dealt("label_skew", 4),
    BEARING.dealt("label_poisoning", 4),
    QUALITY.dealt("0.1", 10),
    HEART.dealt("by hospital", 4),
    HEART.dealt("0.5", 8),
    HEART.dealt("label_poisoning", 5),
    HEART.dealt("noisy_labels", 6),
    HEART.dealt("corrupted_client", 4),
    FLOWS.dealt("0.1", 10),
    FLOWS.dealt("1", 100),
    FLOWS.dealt("label_skew", 4),
    FLOWS.dealt("feature_skew", 4),
    FLOWS.dealt("drop-outs", 10, DROPOUT),
    FLOWS.dealt("attackers", 15, FLIPPED),
    ATTACKS.dealt("0.3", 20),
    ATTACKS.dealt("label_poisoning", 8),
    CLOTHES.dealt("0.1", 10),
    CLOTHES.dealt("0.3", 50, PARTIAL),
    CLOTHES.dealt("class pairs", 20),
    CLOTHES.dealt("two concepts", 10, _concepts(10)),
    CLOTHES.dealt("features scaled", 10, NORM, _scales(10)),
    CLOTHES.dealt("attackers", 15, FLIPPED),
    CLOTHES.dealt("label_poisoning", 10),
    PICTURES.dealt("0.5", 10),
    TWEETS.dealt("0.3", 6),
)


def federations_of_half(half: str | None) -> tuple[JointFederation, ...]:
    """Return the federations of one half of the battery, or all.

    Raises:
        ConfigurationError: If there is no such half.
    """
    if half not in (None, "development", "held-out"):
        raise ConfigurationError(Fault("--half", "be development or held-out", repr(half)))
    return tuple(each for each in JOINT_BATTERY if half in (None, each.half.replace(" ", "-")))
