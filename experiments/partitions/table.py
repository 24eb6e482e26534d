"""Registry of partitions: to add one, write its function and add one line here."""

from __future__ import annotations

from collections.abc import Mapping

from fedscout.experiments.partitions.base import PartitionKind, PartitionSettings
from fedscout.experiments.partitions.generators import fds_vop, fds_wgc, lds, sfdl, sldf
from fedscout.experiments.partitions.labels import (
    classes_per_client,
    dirichlet,
    dominant_class,
    gaussian,
    heterogeneity_index,
    inner_dirichlet,
    poisson,
)
from fedscout.experiments.partitions.others import (
    counts,
    distribution,
    exponential,
    iid,
    linear,
    natural,
    pathological,
    quantity_skew,
    shard,
    square,
)

PARTITIONS: Mapping[str, PartitionKind] = {
    "iid": PartitionKind(iid),
    "natural": PartitionKind(natural, fixes_num_clients=True),
    "dirichlet": PartitionKind(dirichlet, reads=("alpha", "min_size")),
    "inner_dirichlet": PartitionKind(inner_dirichlet, reads=("alpha",)),
    "pathological": PartitionKind(pathological, reads=("classes_per_client", "class_assignment", "min_size")),
    "classes_per_client": PartitionKind(classes_per_client, reads=("class_share", "min_size")),
    "heterogeneity_index": PartitionKind(heterogeneity_index, reads=("levels", "quantities", "min_size")),
    "shard": PartitionKind(shard, reads=("shards_per_client", "min_size")),
    "distribution": PartitionKind(distribution, reads=("classes_per_client", "lognormal_sigma", "min_size")),
    "gaussian": PartitionKind(gaussian, reads=("class_sigma", "min_size")),
    "poisson": PartitionKind(poisson, reads=("class_rate", "min_size")),
    "dominant_class": PartitionKind(dominant_class, reads=("dominant_share", "dominant_fraction", "min_size")),
    "counts": PartitionKind(counts, reads=("counts",), fixes_num_clients=True),
    "quantity_skew": PartitionKind(quantity_skew, reads=("alpha", "min_size")),
    "linear": PartitionKind(linear, reads=("min_size",)),
    "square": PartitionKind(square, reads=("min_size",)),
    "exponential": PartitionKind(exponential, reads=("min_size",)),
    "lds": PartitionKind(lds),
    "fds_vop": PartitionKind(fds_vop),
    "fds_wgc": PartitionKind(fds_wgc, reads=("tail_rule", "min_size"), repeats_rows=True),
    "sfdl": PartitionKind(sfdl, reads=("num_clusters",)),
    "sldf": PartitionKind(sldf),
}


def settings_not_read(settings: PartitionSettings) -> dict[str, object]:
    """Return the settings that differ from their defaults although the kind does not read them."""
    assert settings.kind is not None
    default = PartitionSettings()
    return {
        name: value
        for name, value in settings
        if name not in {"kind", *PARTITIONS[settings.kind].reads} and value != getattr(default, name)
    }
