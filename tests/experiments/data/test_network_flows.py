"""UNSW-NB15 and NF-UNSW-NB15: nothing that tells the label is a feature, and files are read in every form."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.experiments.data.loading import assert_refused, clients_of, load_dataset

UNSW_HEADER = "id,dur,proto,service,state,rate,attack_cat,label"
UNSW_ROWS = [
    f"{row},0.{row}1,{('tcp', 'udp')[row % 2]},-,FIN,{row * 7},{('Normal', 'DoS')[row % 2]},{row % 2}"
    for row in range(1, 21)
]
UNSW = "\n".join([UNSW_HEADER, *UNSW_ROWS, ""])
FLOW_HEADER = (
    "IPV4_SRC_ADDR,L4_SRC_PORT,IPV4_DST_ADDR,L4_DST_PORT,PROTOCOL,L7_PROTO,IN_BYTES,OUT_BYTES,IN_PKTS,OUT_PKTS,"
    "TCP_FLAGS,FLOW_DURATION_MILLISECONDS,Label,Attack"
)
FLOW_ROWS = [
    f"10.0.0.{row % 3},{row},10.0.1.1,80,{(6, 17)[row % 2]},{(7.0, 5.126)[row % 2]},{row * 10},3,{row},1,27,{row * 5},"
    f"{row % 2},{('Benign', 'Fuzzers')[row % 2]}"
    for row in range(20)
]
FLOWS = "\n".join([FLOW_HEADER, *FLOW_ROWS, ""])


def write_unsw(folder: Path, content: str, form: str = "csv") -> Path:
    (folder / "unsw_nb15").mkdir(exist_ok=True)
    path = folder / "unsw_nb15" / f"UNSW_NB15_training-set.{form}"
    if form == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("UNSW_NB15_training-set.csv", content)
    else:
        path.write_bytes(gzip.compress(content.encode()) if form.endswith("gz") else content.encode())
    return folder


def write_flows(folder: Path, content: str) -> Path:
    (folder / "nf_unsw_nb15").mkdir(exist_ok=True)
    (folder / "nf_unsw_nb15" / "NF-UNSW-NB15.csv").write_text(content)
    return folder


@pytest.mark.parametrize("form", ["csv", "csv.gz", "zip"])
def test_unsw_in_every_form(tmp_path: Path, form: str) -> None:
    dataset = load_dataset("unsw_nb15", folder=write_unsw(tmp_path, "\ufeff" + UNSW, form))
    assert dataset.class_names == ("normal", "attack")
    assert dataset.labels.tolist() == [row % 2 for row in range(1, 21)]
    assert dataset.feature_names == ("dur", "proto=tcp", "proto=udp", "service=-", "state=FIN", "rate")
    assert dataset.facts["columns_left_out"] == ("id", "attack_cat")


def test_unsw_by_kind_of_attack_and_service(tmp_path: Path) -> None:
    dataset = load_dataset("unsw_nb15", label="attack_cat", client_column="proto", folder=write_unsw(tmp_path, UNSW))
    assert dataset.class_names == ("DoS", "Normal")
    assert dataset.feature_names == ("dur", "service=-", "state=FIN", "rate")
    assert {*clients_of(dataset)} == {"tcp", "udp"}


@pytest.mark.parametrize(
    ("content", "key", "names"),
    [
        (UNSW.replace(",proto", ",protocol"), "UNSW_NB15_training-set.csv", "columns proto,"),
        (UNSW.replace(",label", ",mark"), "UNSW_NB15_training-set.csv", "columns label,"),
        (UNSW.replace(",", ";"), "the columns of UNSW_NB15_training-set.csv", "semicolon"),
        (UNSW.replace(",0\n", ",1\n"), "column 'label' of data set 'unsw_nb15'", "got 1: 1"),
    ],
)
def test_unsw_malformed(tmp_path: Path, content: str, key: str, names: str) -> None:
    assert_refused("unsw_nb15", folder=write_unsw(tmp_path, content), key=key, names=names)


def test_a_word_among_the_rates_is_named(tmp_path: Path) -> None:
    folder = write_unsw(tmp_path, UNSW.replace(",14,", ",many,"))
    assert_refused("unsw_nb15", folder=folder, names=("column 'rate'", "'many' in row 2"))


@pytest.mark.parametrize(
    ("label", "names"),
    [(None, ("Benign", "Fuzzers")), ("Attack", ("Benign", "Fuzzers")), ("Label", ("benign", "attack"))],
)
def test_addresses_and_ports_are_never_features(tmp_path: Path, label: str | None, names: tuple[str, ...]) -> None:
    dataset = load_dataset("nf_unsw_nb15", label=label, folder=write_flows(tmp_path, FLOWS))
    assert dataset.class_names == names
    assert dataset.feature_names == (
        *("PROTOCOL=17", "PROTOCOL=6", "L7_PROTO=5.126", "L7_PROTO=7.0"),
        *("IN_BYTES", "OUT_BYTES", "IN_PKTS", "OUT_PKTS", "TCP_FLAGS", "FLOW_DURATION_MILLISECONDS"),
    )


def test_an_address_may_be_the_natural_client(tmp_path: Path) -> None:
    folder = write_flows(tmp_path, FLOWS)
    dataset = load_dataset("nf_unsw_nb15", client_column="IPV4_SRC_ADDR", folder=folder, min_release=3)
    assert {*clients_of(dataset)} == {"10.0.0.0", "10.0.0.1", "10.0.0.2"}


def test_times_and_identifiers_of_later_versions_are_no_features(tmp_path: Path) -> None:
    later = "\n".join(
        [f"FLOW_START_MILLISECONDS,{FLOW_HEADER},MIN_TTL", *(f"{n},{row},6{n}" for n, row in enumerate(FLOW_ROWS))]
    )
    names = load_dataset("nf_unsw_nb15", folder=write_flows(tmp_path, later)).feature_names
    assert "MIN_TTL" in names
    assert not any(name.startswith("FLOW_START") for name in names)


def test_a_column_of_the_published_version_must_not_be_missing(tmp_path: Path) -> None:
    content = FLOWS.replace("TCP_FLAGS", "FLAGS")
    assert_refused("nf_unsw_nb15", folder=write_flows(tmp_path, content), key="NF-UNSW-NB15.csv")


@pytest.mark.parametrize("name", ["unsw_nb15", "nf_unsw_nb15"])
def test_missing_files_name_the_publisher(tmp_path: Path, name: str) -> None:
    assert_refused(name, folder=tmp_path, names=(name, "https://"))


@pytest.mark.slow
@pytest.mark.data
def test_published_unsw(data_folder: Path) -> None:
    dataset = load_dataset("unsw_nb15", label="attack_cat", folder=data_folder)
    # N. Moustafa and J. Slay, Information Security Journal 25, 2016, list these counts of the set of 82,332 records.
    assert dict(zip(dataset.class_names, np.bincount(dataset.labels).tolist(), strict=True)) == {
        "Analysis": 677,
        "Backdoor": 583,
        "DoS": 4089,
        "Exploits": 11132,
        "Fuzzers": 6062,
        "Generic": 18871,
        "Normal": 37000,
        "Reconnaissance": 3496,
        "Shellcode": 378,
        "Worms": 44,
    }
    assert dataset.facts["num_duplicate_rows"] == 26387
    assert not {"id", "label"} & set(dataset.feature_names)
    columns = {name.partition("=")[0].removesuffix(" other") for name in dataset.feature_names}
    assert len(columns) == 42
