"""UNSW-NB15 and NF-UNSW-NB15: network flows, normal or attack, or the attack's kind in ten classes.

`unsw_nb15`: 82,332 flows with 42 features, N. Moustafa and J. Slay, "UNSW-NB15: a comprehensive data set for network
intrusion detection systems", MilCIS 2015. What is read is the file `UNSW_NB15_training-set`. `id` only numbers rows.
Protocol, service and state are categories; `-` in `service` is a category of its own, as published.

`nf_unsw_nb15`: the same flows as NetFlow records, M. Sarhan, S. Layeghy, N. Moustafa and M. Portmann, "NetFlow datasets
for machine learning-based network intrusion detection systems", Big Data Technologies and Applications (BDTA 2020),
Springer, 2021, arXiv:2011.09144: 1,623,118 flows, with the twelve columns that the paper lists beside the two labels.
Its usual label is `Attack`, of ten classes; `federation.label=Label` has two. Addresses and ports are never features:
attacks came from a few machines, so they would tell the label. Protocols (layer 4 and layer 7) are categories. Later
versions of the file have more columns; those are features, too, apart from times and identifiers.

Files are CSV, packed with gzip or in a zip. Of the two labels (0 normal or benign, 1 attack; the attack's kind) the one
that is not predicted would tell the other, so neither is a feature. Any column may name natural clients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedscout.experiments.federations.datasets.dataset import Dataset
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest
from fedscout.experiments.federations.datasets.publication import Layout, Publication, locate_layout
from fedscout.experiments.federations.datasets.tables.column_roles import ColumnRoles
from fedscout.experiments.federations.datasets.tables.mixed_table import dataset_from_mixed_table
from fedscout.experiments.federations.datasets.tables.table_file import read_csv, require_columns


@dataclass(frozen=True)
class FlowFiles:
    """What differs between the two data sets' files.

    Attributes:
        publication: Who published them.
        file: The file below the data folder, without its ending.
        labels: The usual label, then the other.
        binary: Which of them has two classes.
        class_names: Of that one.
        categories: Columns of categories.
        never_features: Columns that are no features, beside the labels; not every version of a file has them all.
        required: Columns that the published version has, beside the labels and the categories.
    """

    publication: Publication
    file: str
    labels: tuple[str, str]
    binary: str
    class_names: tuple[str, str]
    categories: tuple[str, ...]
    never_features: tuple[str, ...]
    required: tuple[str, ...] = ()


UNSW_NB15 = FlowFiles(
    Publication("Moustafa and Slay, UNSW-NB15, MilCIS 2015", "https://research.unsw.edu.au/projects/unsw-nb15-dataset"),
    file="unsw_nb15/UNSW_NB15_training-set",
    labels=("label", "attack_cat"),
    binary="label",
    class_names=("normal", "attack"),
    categories=("proto", "service", "state"),
    never_features=("id",),
)
ENDPOINTS = ("IPV4_SRC_ADDR", "L4_SRC_PORT", "IPV4_DST_ADDR", "L4_DST_PORT")
NF_UNSW_NB15 = FlowFiles(
    Publication(
        "Sarhan, Layeghy, Moustafa and Portmann, NF-UNSW-NB15, BDTA 2020",
        "https://staff.itee.uq.edu.au/marius/NIDS_datasets/",
    ),
    file="nf_unsw_nb15/NF-UNSW-NB15",
    labels=("Attack", "Label"),
    binary="Label",
    class_names=("benign", "attack"),
    categories=("PROTOCOL", "L7_PROTO"),
    never_features=(*ENDPOINTS, "FLOW_START_MILLISECONDS", "FLOW_END_MILLISECONDS", "DNS_QUERY_ID", "Label", "Attack"),
    required=(*ENDPOINTS, "IN_BYTES", "OUT_BYTES", "IN_PKTS", "OUT_PKTS", "TCP_FLAGS", "FLOW_DURATION_MILLISECONDS"),
)


def load_unsw_nb15(request: DatasetRequest) -> Dataset:
    """Load the flows; the usual label is `label`, and `attack_cat` is the other."""
    return _load(UNSW_NB15, request)


def load_nf_unsw_nb15(request: DatasetRequest) -> Dataset:
    """Load the flows; the usual label is `Attack`, and `Label`, normal or attack, is the other."""
    return _load(NF_UNSW_NB15, request)


def _load(flows: FlowFiles, request: DatasetRequest) -> Dataset:
    layouts = (Layout("CSV", (f"{flows.file}.csv",), packed=True), Layout("zip", (f"{flows.file}.zip",)))
    _, (path,) = locate_layout(request.name, layouts, flows.publication, request.folder)
    rows = read_csv(path, delimiter=",", limits=request.limits)
    require_columns(path, rows, (*flows.required, *flows.categories, *flows.labels))
    label = request.label or flows.labels[0]
    known = {*flows.never_features, *(flows.labels if label in flows.labels else ())}
    roles = ColumnRoles(
        label=label,
        client=request.client_column,
        never_features=tuple(column for column in rows.column_names if column in known and column != label),
        categories=flows.categories,
        dropped=request.drop_columns,
    )
    source = str(flows.publication)
    dataset = dataset_from_mixed_table(request.name, rows, roles, request.min_release, source, facts={})
    return replace(dataset, class_names=flows.class_names) if label == flows.binary else dataset
