"""The federations on which strategies are compared: small enough that a trial takes about a second at most.

All strategies meet the same model on a federation. Digits go through one hidden layer of 32; where features differ by
client it has batch normalisation, which FedBN needs. Attackers change what they send and not their rows, so all rows
are honest, and the accuracy over all clients is that on honest data. They are 3 of 15, the fewest of whom a fifth
attacks and Bulyan's 4f + 3 still holds; at factor 4 their flipped updates cancel those of the other twelve in a mean.

Three federations are there for claims that need them, and are trained by those whom the claims name. Where labels are
wrong at some clients, rates are chosen and models scored by the labels as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.benchmarks.choice.choice_battery import FederationCase


@dataclass(frozen=True)
class StrategyFederation:
    """One federation of the battery.

    Attributes:
        case: Its name and arguments.
        about: For people.
        for_claims: Whether it is trained only by the strategies of the claims about it.
    """

    case: FederationCase
    about: str
    for_claims: bool = False

    @property
    def name(self) -> str:
        """As it is chosen."""
        return self.case.name


def _digits(name: str, about: str, *arguments: str, rounds: int = 20, for_claims: bool = False) -> StrategyFederation:
    common = ("federation.dataset=digits", "model.kind=dense", "model.hidden=[32]", f"training.num_rounds={rounds}")
    return StrategyFederation(FederationCase(name, (*common, *arguments)), about, for_claims)


def _scaled(*factors: float) -> str:
    """Return an effect for each factor, the same for two clients in turn."""
    effects = ", ".join(
        f"{{kind: feature_scale, clients: [{2 * place}, {2 * place + 1}], factor: {factor:g}}}"
        for place, factor in enumerate(factors)
    )
    return f"federation.scenario=[{effects}]"


BATTERY: tuple[StrategyFederation, ...] = (
    _digits("dirichlet_0.1", "digits, labels by Dirichlet 0.1 to 10 clients", "federation.partition.alpha=0.1"),
    _digits("dirichlet_0.5", "digits, labels by Dirichlet 0.5 to 10 clients", "federation.partition.alpha=0.5"),
    _digits(
        "class_pairs",
        "digits, one class a client, of two clients each",
        *("federation.partition.kind=pathological", "federation.partition.classes_per_client=1"),
        *("federation.partition.class_assignment=deterministic", "federation.num_clients=20"),
    ),
    StrategyFederation(
        FederationCase(
            "wine_colour",
            (
                *("federation.dataset=wine_quality", "federation.client_column=color", "model.kind=dense"),
                *("model.hidden=[32]", "training.batch_size=64", "training.num_rounds=15"),
            ),
            needs_files=True,
        ),
        "wine quality, red and white wines are the two clients",
    ),
    _digits(
        "feature_scale",
        "digits, IID to 10 clients, features times 0.2, 0.5, 1, 2, 5 at two clients each; batch normalisation",
        *("federation.partition.kind=iid", "model.norm=batch", _scaled(0.2, 0.5, 1, 2, 5)),
        rounds=15,
    ),
    _digits(
        "two_concepts",
        "digits, IID to 10 clients, at five of them each digit has changed its label with its neighbour",
        "federation.partition.kind=iid",
        "federation.scenario={kind: concept_shift, clients: [5, 6, 7, 8, 9], permutation: [1,0,3,2,5,4,7,6,9,8]}",
    ),
    _digits(
        "attackers",
        "digits, labels by Dirichlet 0.5 to 15 clients, 3 of them send their update turned round, four times as long",
        *("federation.partition.alpha=0.5", "federation.num_clients=15"),
        "federation.scenario={kind: sign_flip, clients: 0.2, factor: 4}",
    ),
    _digits(
        "unequal_steps",
        "digits, labels by Dirichlet 0.1 to 10 clients of 12 to 310 rows, 5 local epochs",
        *("federation.partition.alpha=0.1", "training.local_epochs=5"),
        rounds=10,
        for_claims=True,
    ),
    _digits(
        "few_rounds",
        "digits, labels by Dirichlet 0.1 to 10 clients, 3 rounds of 10 local epochs, 200 rows at the server",
        *("federation.partition.alpha=0.1", "training.local_epochs=10", "federation.server_rows=200"),
        rounds=3,
        for_claims=True,
    ),
    _digits(
        "noisy_labels",
        "digits, IID to 10 clients, 40 % of the labels wrong at four of them, scored by right ones, 5 local epochs; "
        "200 labelled rows at the server",
        *("federation.partition.kind=iid", "federation.scenario={kind: label_flip, clients: [6, 7, 8, 9], rate: 0.4}"),
        *("search.view=clean", "training.local_epochs=5"),
        *("federation.server_rows=200", "federation.server_labels=true"),
        for_claims=True,
    ),
)


def federations_of(names: Sequence[str] | None) -> tuple[StrategyFederation, ...]:
    """Return the named federations in the battery's order, or all.

    Raises:
        ConfigurationError: If there is no such federation.
    """
    allowed = [federation.name for federation in BATTERY]
    if unknown := [name for name in names or () if name not in allowed]:
        raise ConfigurationError(f"--federations must be of {', '.join(allowed)}, got {unknown[0]!r}")
    return tuple(federation for federation in BATTERY if names is None or federation.name in names)
