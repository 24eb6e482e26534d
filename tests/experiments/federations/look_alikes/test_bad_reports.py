"""What can't be reproduced is refused in one clear line, before anything is dealt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedscout.detectors.report import TENTHS
from fedscout.engine.errors import ConfigurationError, DataError
from tests.experiments.federations.look_alikes.reports import built, report_on, written

GOOD = ((20, 30), (30, 20))


def refused(path: Path, *arguments: str) -> str:
    with pytest.raises((DataError, ConfigurationError)) as error:
        built(f"federation.like={path}", *(arguments or ("federation.dataset=breast_cancer",)))
    (fault,) = error.value.faults
    assert "\n" not in fault
    return fault


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"num_classes": 0, "clients": ()}, "clients that play episodes"),
        ({"notes": (TENTHS,)}, "not on a quantity that is predicted"),
        ({"clients": (), "withheld": {0: "holds fewer rows than federation.min_release"}}, "in which a client tells"),
        ({"num_clients": 10**9}, "on at most 1000000 clients, not on 1000000000"),
        ({"num_classes": 3}, "with counts of its rows in 3 classes, unlike client 0"),
    ],
    ids=["players", "quantity", "nobody", "too many", "counts"],
)
def test_a_report_that_says_nothing_of_labelled_rows(tmp_path: Path, fields: dict[str, Any], part: str) -> None:
    path = written(report_on(*GOOD, **fields), tmp_path)
    assert part in refused(path)
    assert f"got {path}" in refused(path)


def test_clients_of_which_none_tells_of_a_class(tmp_path: Path) -> None:
    path = written(report_on((0, 0), (0, 0), untold=(4, 4)), tmp_path)
    assert "(federation.min_release)" in refused(path)


def test_a_client_that_is_named_twice_or_tells_of_more_rows_than_it_holds(tmp_path: Path) -> None:
    report = report_on(*GOOD)
    twice = report.model_copy(update={"clients": (report.clients[0], report.clients[0])})
    assert "names each client once" in refused(written(twice, tmp_path))
    more = report.clients[1].model_copy(update={"num_rows": 3})
    assert "unlike client 1" in refused(written(report.model_copy(update={"clients": (more,)}), tmp_path))


def test_a_file_that_is_none_or_of_another_version(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    assert "there is no such file" in refused(path)
    path.write_text("[]")
    assert "it holds no JSON object" in refused(path)
    document = report_on(*GOOD).model_dump(mode="json")
    path.write_text(json.dumps({**document, "colour": "red"}))
    assert "colour is not a known key, as in a report of another version" in refused(path)
    del document["clients"]
    path.write_text(json.dumps(document))
    assert "clients must be given" in refused(path)


def test_data_of_too_few_classes_rows_or_of_none(tmp_path: Path) -> None:
    path = written(report_on((9,) * 11, (9,) * 11), tmp_path)
    assert "at least as many classes as were diagnosed, 11, got 10 of 'digits'" in refused(
        path, "federation.dataset=digits"
    )
    many = written(report_on(*[(1, 1)] * 600), tmp_path)
    assert "enough rows of each class to give every client one" in refused(many)
    few = written(report_on(*GOOD), tmp_path)
    assert "of which a quantity is predicted" in refused(few, "federation.dataset=diabetes")


def test_what_else_deals_rows(tmp_path: Path) -> None:
    path, digits = written(report_on(*GOOD), tmp_path), "federation.dataset=breast_cancer"
    assert "where like fixes it" in refused(path, digits, "federation.partition.alpha=1")
    assert "must deal no rows" in refused(path, digits, "federation.scenario=iid")
    assert "got class_skew" in refused(path, digits, "federation.scenario={kind: class_skew, clients: [1], share: 0.8}")
    assert "must be left out or be 2" in refused(path, digits, "federation.num_clients=3")
    assert "where clients play episodes" in refused(path, "federation.dataset=cartpole")
