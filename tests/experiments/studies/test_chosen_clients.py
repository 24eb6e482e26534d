"""A selection policy on the whole road: configured, searched, resumed, logged, and refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import fedscout
from fedscout.engine.errors import UserError
from fedscout.experiments.config.config_file import load_config
from fedscout.experiments.studies.workflow import cohort_of, selection_of
from fedscout.search.ledger import StudyFacts
from fedscout.search.study.study import planned_space
from fedscout.strategies import FedAvgSpec, parse_strategy
from fedscout.strategies.selection.flash import FlashSpec

SOME = ("federation.num_clients=20", "training.fraction_train=0.2", "training.num_rounds=30")


def refusal(*arguments: str) -> str:
    config = load_config(arguments)
    with pytest.raises(UserError) as caught:
        selection_of(config, cohort_of(config, config.federation.num_seen or 0))
    return str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["selection.kind=oort"], "selection.kind=oort must have fewer clients a round than there are to choose from"),
        ([*SOME, "selection.kind=nix"], "kind of a selection must be one of random, oort, pyramidfl"),
        ([*SOME, "selection.kind=oort", "selection.worth=1"], "worth is no parameter of selection.kind=oort, got 1"),
        ([*SOME, "selection.kind=oort", "selection.exploration=2"], "exploration of selection.kind=oort must be"),
        ([*SOME, "selection.kind=fedcor", "training.num_rounds=5"], "warm_up of selection.kind=fedcor must be less"),
        ([*SOME, "selection.kind=custom", "selection.path=nix:Da"], "nix:Da must be importable from the Python path"),
        ([*SOME, "selection.kind=flash", "federation.dataset=diabetes"], "must have clients with classes as labels"),
        ([*SOME, "selection.kind=flash", "federation.dataset=cartpole"], "must have clients with classes as labels"),
        (["strategy={kind: fedavg, selection: oort}"], "selection.kind=oort must have fewer clients a round"),
    ],
)
def test_what_can_t_choose_is_refused_before_anything_trains(arguments: list[str], says: str) -> None:
    assert says in refusal(*arguments)


def test_a_searched_policy_that_measures_labels_is_refused_where_clients_play(tmp_path: Path) -> None:
    federation = fedscout.Federation("cartpole", num_clients=6)
    asked: dict[str, Any] = {"training": {"num_rounds": 2, "fraction_train": 0.5}, "engine": {"grid": "local"}}
    with pytest.raises(UserError, match=r"selection.kind=flash must have clients with classes as labels"):
        fedscout.study(
            federation, detection_first=False, out=tmp_path, search={"selection": ["random", "flash"]}, **asked
        )
    assert not [*tmp_path.glob("trials*")]


@pytest.mark.parametrize("names", ["[]", "[oort, oort]"])
def test_a_search_names_policies_once(names: str) -> None:
    with pytest.raises(UserError, match=r"search.selection must name at least one, and each once"):
        load_config([f"search.selection={names}"])


def test_a_policy_is_part_of_the_identity_and_none_leaves_it_as_it_was() -> None:
    digests = {
        load_config([*SOME, *more]).digest()
        for more in ([], ["selection.kind=oort"], ["selection.kind=flash"], ["selection={kind: flash, alpha: 1}"])
    }
    assert len(digests) == 4
    assert not {"selection"} & load_config(SOME).identity().keys()
    assert "selection" not in load_config(SOME).identity()["search"]


def test_a_searched_policy_joins_every_strategy() -> None:
    config = load_config([*SOME, "search.selection=[random, oort, flash]"])
    space = planned_space(config.search, cohort_of(config, 20), config.training.local())
    drawn = [space.random(np.random.default_rng(seed)) for seed in range(60)]
    assert {spec.selection for spec in drawn} == {"random", "oort", "flash"}
    assert all(space.contains(spec) for spec in drawn)
    assert not space.contains(FedAvgSpec())
    assert space.digest(drawn[0].with_values({"selection": "oort"})) != space.digest(
        drawn[0].with_values({"selection": "flash"})
    )
    assert {"random", "oort", "flash"} == {*space.json_schema()["oneOf"][0]["properties"]["selection"]["enum"]}


def test_a_named_policy_has_the_study_s_parameters_if_it_is_the_study_s() -> None:
    config = load_config([*SOME, "selection={kind: flash, alpha: 0.7}"])
    cohort = cohort_of(config, 20)
    facts = StudyFacts("x", 30, cohort, config.training.session(0), selection=selection_of(config, cohort))
    own = FlashSpec(alpha=0.7)
    assert facts.trial("train", FedAvgSpec()).selection == own
    assert facts.trial("train", parse_strategy({"kind": "fedavg", "selection": "flash"})).selection == own
    named = facts.trial("train", parse_strategy({"kind": "fedavg", "selection": "oort"})).selection
    assert named is not None
    assert named.kind == "oort"
    keys = {facts.trial("train", spec).key for spec in (FedAvgSpec(), FedAvgSpec(selection="oort"))}
    assert len(keys) == 2


def test_validation_rows_come_from_the_training_rows_only_for_who_measures_on_them() -> None:
    config = load_config(SOME)
    facts = StudyFacts("x", 30, cohort_of(config, 20), config.training.session(0))
    fractions = {
        kind: facts.trial("train", FedAvgSpec(selection=kind)).session.validation_fraction
        for kind in ("random", "oort", "flash")
    }
    assert fractions == {"random": 0.0, "oort": 0.0, "flash": 0.1}


def study(folder: Path, **more: Any) -> fedscout.Study:
    federation = fedscout.Federation("digits", num_clients=8, scenario="flash_both")
    asked: dict[str, Any] = {
        "training": {"num_rounds": 4, "fraction_train": 0.4},
        "search": {
            "selection": ["random", "oort", "flash"],
            "budget": 4,
            "generation_size": 4,
            "confirmation_seeds": 2,
            "tuned_baseline": False,
        },
        "engine": {"grid": "local"},
    }
    return fedscout.study(federation, out=folder, detection_first=False, **{**asked, **more})


@pytest.mark.slow
def test_a_study_searches_logs_and_goes_on(tmp_path: Path) -> None:
    first = study(tmp_path / "one")
    rows = pq.read_table(tmp_path / "one" / "trials").to_pylist()
    searched = [row for row in rows if row["phase"] == "search"]
    assert {row["selection"] for row in searched} <= {"random", "oort", "flash"}
    assert all(sum(row["client_rounds"]) >= 4 * 3 for row in searched)
    assert {row["selection"] for row in rows if row["phase"] == "baseline"} == {None}
    confirmed = [row for row in rows if row["phase"] == "confirmation"]
    assert first.document["best"]["parameters"].get("selection") in {row["selection"] for row in confirmed}

    last = max((tmp_path / "one" / "trials").iterdir(), key=lambda path: path.name)
    last.unlink()
    again = study(tmp_path / "one")
    assert again.document["best"] == first.document["best"]
    assert again.document["confirmation"] == first.document["confirmation"]
