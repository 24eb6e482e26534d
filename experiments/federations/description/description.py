"""The whole description of a federation: a value that is printed, drawn and written as JSON."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from fedscout.detectors.detection_config import DetectionConfig
from fedscout.engine.data.federation import Federation
from fedscout.engine.data.names import Names
from fedscout.experiments.federations.description.changes import ClientChange, changes_of
from fedscout.experiments.federations.description.dependent_rows import dependence_notes
from fedscout.experiments.federations.description.realised_heterogeneity import Measurement, Realised, measure


class ClientDescription(BaseModel):
    """One client.

    Attributes:
        client: Its number.
        name: Of a natural client; else None.
        num_rows: Rows it holds.
        label_counts: Rows of each class, as the client has them; empty for clients that play episodes.
        label_divergence: Jensen-Shannon divergence between its labels and everyone's, in bits; None if not measured.
        heterogeneity_index: 1 − (c − 1)/(c_max − 1), c of c_max classes present; None if not measured.
        affected: Whether a scenario is known to have made it different.
        physics: Of a client that plays episodes, as the task shows them; else None.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    client: int
    name: str | None = None
    num_rows: int
    label_counts: tuple[int, ...]
    label_divergence: float | None = None
    heterogeneity_index: float | None = None
    affected: bool = False
    physics: str | None = None


class Description(BaseModel):
    """A federation and how its clients differ.

    Attributes:
        name: For people.
        source: Who published the data.
        data_kind: What a row is: table, image, tokens or embedding.
        feature_shape: Of one row.
        class_names: In the order of the counts; empty if classes have no names.
        realised: The numbers over all clients.
        clients: Each client.
        changes: What a scenario did to clients.
        affected_clients: Clients that a scenario is known to have made different, by their rows or by the deal.
        unseen_clients: Clients that join after the training; the numbers are over them, too.
        target_name: The quantity that is predicted, whose tenths the classes are; nothing where classes are predicted.
        score_name: What clients that play episodes are scored by; None where clients hold rows.
        dependence: What a reader must know of rows that belong together.
        facts: What the builder put on record.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    source: str
    data_kind: str
    feature_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    realised: Realised
    clients: tuple[ClientDescription, ...]
    changes: tuple[ClientChange, ...]
    affected_clients: tuple[int, ...]
    unseen_clients: tuple[int, ...] = ()
    target_name: str = ""
    score_name: str | None = None
    dependence: tuple[str, ...] = ()
    facts: dict[str, Any]

    @property
    def names(self) -> Names:
        """Of clients and classes."""
        return Names(tuple(one.name or str(one.client) for one in self.clients), self.class_names)

    @property
    def class_counts(self) -> tuple[tuple[str, int], ...]:
        """Each class with its rows over all clients, the most frequent first; empty where clients hold no rows."""
        if self.score_name is not None or not self.clients:
            return ()
        counts = [sum(column) for column in zip(*(one.label_counts for one in self.clients), strict=True)]
        named = [
            self.class_names[label] if label < len(self.class_names) else str(label) for label in range(len(counts))
        ]
        return tuple(sorted(zip(named, counts, strict=True), key=lambda pair: -pair[1]))


def describe_federation(
    federation: Federation, settings: DetectionConfig, seed: int, test_fraction: float = 0.2
) -> Description:
    """Describe a federation.

    Args:
        federation: With its rows.
        settings: Of detection, whose limits, bins and sample are used.
        seed: Of the study, by which detection draws its sample and clients split their rows.
        test_fraction: Share of test rows a client.
    """
    measurement = measure(federation, settings, seed, settings.max_features)
    return Description(
        name=federation.name,
        source=str(federation.facts.get("source", "")),
        data_kind=str(federation.facts.get("data_kind", "table")),
        feature_shape=federation.features.shape[1:],
        class_names=federation.class_names,
        realised=measurement.realised,
        clients=_clients(federation, measurement),
        changes=changes_of(federation, measurement.holdings),
        affected_clients=federation.affected_clients,
        unseen_clients=tuple(sorted(federation.unseen)),
        target_name=federation.target_name,
        score_name=None if federation.task is None else federation.task.score_name,
        dependence=dependence_notes(federation, seed, test_fraction),
        facts=dict(federation.facts),
    )


def _clients(federation: Federation, measurement: Measurement) -> tuple[ClientDescription, ...]:
    names = federation.facts.get("client_names", ())
    divergences, indices = measurement.label_skew.client_values, measurement.heterogeneity_indices
    affected = frozenset(federation.affected_clients)
    counts = measurement.holdings.label_counts.tolist()
    sizes = federation.partition.sizes.tolist()
    plays = federation.task is not None
    physics = getattr(federation.task, "physics", ())
    return tuple(
        ClientDescription(
            client=client,
            name=str(names[client]) if client < len(names) else None,
            num_rows=sizes[client],
            label_counts=() if plays else tuple(counts[client]),
            label_divergence=divergences.get(client),
            heterogeneity_index=indices.get(client),
            affected=client in affected,
            physics=repr(physics[client]) if client < len(physics) else None,
        )
        for client in range(federation.num_clients)
    )
