"""The file of an experiment: what it means, and what of it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments import published, suites
from fedscout.experiments.grids import catalogue, experiment
from fedscout.experiments.grids.catalogue import ANSWERS, Entry, Run, entries_named, recorded_answers
from fedscout.experiments.grids.federation_runner import built_federation, open_federation, read_config
from fedscout.experiments.grids.recommenders import ChoiceTask, recommender_named
from fedscout.experiments.studies.workflow import with_strategy
from fedscout.search.language_model import read_exchanges
from fedscout.strategies import parse_selection, parse_strategy
from fedscout.strategies.selection.bandits import FlashSpec

PLAIN: dict[str, Any] = {
    "title": "two rows in three columns",
    "settings": {"federation.dataset": "wine", "training.num_rounds": 3},
    "columns": {"a": {"federation.num_clients": 4}, "b": {"federation.num_clients": 5}, "c, d": {}},
    "rows": {
        "FedAvg": {},
        "rules": {"kind": "choose", "by": "rules"},
        "FedAdam": {"settings": {"strategy.kind": "fedadam"}},
    },
}


def made(**more: Any) -> experiment.Experiment:
    return experiment.Experiment.model_validate({**PLAIN, **more})


def test_cells_are_rows_by_columns_whose_settings_lie_over_those_of_all() -> None:
    found = made()
    assert len(found.cells()) == len({*found.cells()}) == 9
    assert found.federations["b"] == {**PLAIN["settings"], "federation.num_clients": 5}


def test_axes_are_crossed_and_their_levels_can_have_names() -> None:
    axes = {"federation.scenario": {"plain": None, "two": ["a", "b"]}, "federation.num_clients": [4, 5]}
    found = made(columns={}, axes=axes)
    assert [*found.federations] == [f"{name}, num_clients={clients}" for name in ("plain", "two") for clients in (4, 5)]
    assert found.federations["two, num_clients=5"]["federation.scenario"] == ["a", "b"]


def test_a_cell_that_is_a_mean_has_a_part_for_each_level() -> None:
    found = made(mean_over={"strategy.kind": ["fedavg", "scaffold"], "training.local_epochs": [1, 2]})
    assert found.cells() == made().cells()
    parts = found.parts()
    assert len(parts.cells()) == 4 * len(found.cells())
    set_by_part = {"strategy.kind": "scaffold", "training.local_epochs": 2}
    assert parts.federations["a, scaffold, local_epochs=2"] == {**found.federations["a"], **set_by_part}
    assert made().parts() == made()
    compared = {"FedAvg > rules @ a, fedavg | b, fedavg": "the second column is left out"}
    found = made(mean_over={"strategy.kind": ["fedavg"]}, statements=compared).only(None, ["a"])
    assert [one.first for one in found.all_statements()] == [("FedAvg", "a, fedavg")]


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("FedAvg > rules @ a", [(("FedAvg", "a"), ("rules", "a"))]),
        ("FedAvg > rules @ a | c, d", [(("FedAvg", "a"), ("rules", "a")), (("FedAvg", "c, d"), ("rules", "c, d"))]),
        ("FedAvg > rules @ *", [(("FedAvg", name), ("rules", name)) for name in ("a", "b", "c, d")]),
        ("FedAvg @ a > FedAvg @ b", [(("FedAvg", "a"), ("FedAvg", "b"))]),
        ("FedAvg = rules @ a", [(("FedAvg", "a"), ("rules", "a"))]),
        ("FedAvg > rules > FedAdam @ a", [(("FedAvg", "a"), ("rules", "a")), (("rules", "a"), ("FedAdam", "a"))]),
    ],
)
def test_statements(text: str, pairs: list[tuple[Any, Any]]) -> None:
    found = made(statements={text: "said"})
    relation = "=" if "=" in text else ">"
    assert [(one.first, one.second) for one in found.all_statements()] == pairs
    assert {(one.relation, one.says) for one in found.all_statements()} == {(relation, "said")}


def test_published_numbers_are_lists_over_the_columns_or_name_them() -> None:
    published = {"FedAvg": [0.5, None, [0.25, 0.05]], "rules": {"b": 1}}
    assert made(published=published).printed() == {
        ("FedAvg", "a"): (0.5, None),
        ("FedAvg", "c, d"): (0.25, 0.05),
        ("rules", "b"): (1.0, None),
    }


def test_a_row_or_column_may_have_published_numbers_alone() -> None:
    columns = {**PLAIN["columns"], "z": "published"}
    found = made(columns=columns, rows={"FedAvg": {}, "by hand": "published"}, published={"by hand": {"z": 1}})
    for part in (found, found.only(None, ["a", "z"])):
        assert ("by hand", "z") in part.cells()
        assert {row for row, _ in part.measured()} == {"FedAvg"}
        assert "z" not in {column for _, column in part.measured()}
    assert found.only(None, ["a"]).federations["a"] == found.federations["a"]


def test_a_scale_replaces_parts_and_adds_to_the_settings() -> None:
    found = made(scales={"published": {"seeds": 10, "settings": {"federation.dataset": "digits"}}})
    assert found.at(None).seeds == 5
    assert found.at("laptop") == found
    assert found.at("published").seeds == 10
    assert found.at("published").federations["c, d"] == {**PLAIN["settings"], "federation.dataset": "digits"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"axes": {"seed": [1]}},
        {"columns": {}},
        {"reference": "FedAvgM"},
        {"statements": {"FedAvg @ a": ""}},
        {"statements": {"FedAvg > FedProx @ a": ""}},
        {"statements": {"FedAvg > rules @ z": ""}},
        {"published": {"FedProx": [1, 2, 3]}},
        {"rows": {"a": {"kind": "given"}}},
        {"rows": {"a": {"kind": "choose"}}},
        {"rows": {"a": {"kind": "choose", "by": "rules", "settings": {"training.num_rounds": 3}}}},
        {"rows": {}},
        {"method": {"rates": [0.1]}, "rows": ["FedAvg"]},
        {"columns": {}, "axes": {"federation.num_clients": []}},
        {"published": {"rules": [1, 2]}},
        {"published": {"rules": ["a", "b", "c"]}},
        {"settings": {"engine.grid": "ray"}},
        {"columns": {"a": {"seed": 3}}},
        {"rows": {"FedAvg": {"settings": {"engine": {"grid": "ray"}}}}},
        {"mean_over": {"strategy.kind": "fedavg"}},
    ],
)
def test_what_can_t_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        made(**wrong)


@pytest.mark.parametrize("text", ["title: [", "- a list", "title: no rows", "\x00"])
def test_a_file_that_is_none_is_refused_by_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        experiment.read_experiment(path)
    assert all(str(path) in fault for fault in refused.value.faults)
    with pytest.raises(ConfigurationError):
        experiment.read_experiment(tmp_path / "none.yaml")


def test_a_file_is_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(PLAIN))
    assert experiment.read_experiment(path) == made()
    assert experiment.is_experiment(path)
    for text in ("federation: {dataset: wine}", "rows", "{", "["):
        path.write_text(text)
        assert not experiment.is_experiment(path)
    assert not experiment.is_experiment(tmp_path)
    assert not experiment.is_experiment(tmp_path / "none.yaml")


def test_what_rows_have_in_common_is_said_once() -> None:
    found = made(method={"rates": [0.1, 1.0]}, rows={"a": {}, "b": {"rates": [0.5]}})
    rates = [method.rates for method in found.rows.values() if isinstance(method, experiment.Train)]
    assert rates == [(0.1, 1.0), (0.5,)]


def test_part_of_an_experiment_has_what_is_said_of_it() -> None:
    whole = made(
        reference="FedAvg",
        statements={"FedAvg > rules @ *": "one", "FedAdam > rules @ a": "other"},
        published={"rules": [1, [2, 0.2], 3]},
    )
    part = whole.only(["rules"], ["b", "a"])
    assert part.cells() == [("FedAvg", "a"), ("rules", "a"), ("FedAvg", "b"), ("rules", "b")]
    assert part.federations == {name: whole.federations[name] for name in ("a", "b")}
    assert [one.first for one in part.all_statements()] == [("FedAvg", "a"), ("FedAvg", "b")]
    assert part.printed() == {("rules", "a"): (1.0, None), ("rules", "b"): (2.0, 0.2)}
    assert [*whole.only(None, ["c", "d", "a"]).federations] == ["a", "c, d"]  # as a list on the command line is cut
    for rows, columns in ((["FedAdagrad"], None), (None, ["z"]), (None, ["c", "a"])):
        with pytest.raises(ConfigurationError):
            whole.only(rows, columns)


# The published tables: every file is read at every scale, and every training that is named can be configured.


FOLDER = Path(published.__file__).parent
ENTRIES = catalogue.catalogue(FOLDER)
SUITES = catalogue.catalogue(Path(suites.__file__).parent)
SCALES = ("laptop", "published")
EVERY = [pytest.param(entry, scale, id=f"{entry.name}-{scale}") for entry in (*ENTRIES, *SUITES) for scale in SCALES]


@pytest.mark.sampled(40)
@pytest.mark.parametrize(("entry", "scale"), EVERY)
def test_every_cell_can_be_configured(entry: Entry, scale: str) -> None:
    found = entry.read(scale)
    printed, cells = found.printed(), {*found.cells(), *found.parts().cells()}
    assert printed.keys() <= cells
    assert all(one.first != one.second and {one.first, one.second} <= cells for one in found.all_statements())
    if found.measured_by is not None:
        assert callable(experiment.imported(found.measured_by.function)(**found.measured_by.arguments).measure)
        return
    for row, column in {(row, next(iter(found.federations))) for row in found.rows} | {
        (next(iter(found.rows)), column) for column in found.federations
    }:
        method = found.rows[row]
        if isinstance(method, str) or isinstance(found.columns.get(column), str):
            continue
        if isinstance(method, experiment.Choose):
            assert callable(recommender_named(method.by).choose)
        own = experiment.arguments(method.settings) if isinstance(method, experiment.Train | experiment.Detect) else ()
        config = read_config([*experiment.arguments(found.federations[column]), *own])
        parse_strategy(with_strategy(config).strategy or {})


def test_every_file_is_listed_and_no_table_is_both_measured_and_absent() -> None:
    assert not {entry.name for entry in ENTRIES} & catalogue.absent_tables(FOLDER).keys()
    files = {path for path in FOLDER.glob("*/*.yaml") if path.name != "source.yaml"}
    assert files == {entry.path for entry in ENTRIES}


def test_a_source_s_name_is_all_of_its_tables() -> None:
    both = entries_named(ENTRIES, ["selection", "selection/table1"])
    assert both == [entry for entry in ENTRIES if entry.source == "selection"]
    assert entries_named(ENTRIES, []) == ENTRIES


def test_a_shown_command_names_its_searchers() -> None:
    own = {"own:Search": experiment.Choose(kind="choose", by="own:Search")}
    run = Run("bench", list, num_seeds=3, rows=("a b",), more_rows=own)
    assert run.shown == "bench --seeds 3 --rows 'a b' --searcher own:Search"


def test_recorded_answers_are_those_of_their_requests_and_replace_a_model_that_is_not_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = FOLDER / "choice" / ANSWERS
    exchanges, _ = read_exchanges(path)
    assert exchanges
    assert all(exchange.request_digest == exchange.request.digest() for exchange in exchanges)
    (model,) = {exchange.request.model for exchange in exchanges}
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert recorded_answers(path, ["seed=1"]) == (f"recommender.replay={path}", f"recommender.model={model}")
    assert recorded_answers(path, ["recommender.base_url=http://127.0.0.1/v1"]) == ()
    assert recorded_answers(path.with_name("none"), []) == ()
    monkeypatch.setenv("OPENAI_API_KEY", "a key")
    assert recorded_answers(path, []) == ()


@pytest.mark.slow
@pytest.mark.parametrize("row", ["A", "B", "C"])
@pytest.mark.usefixtures("data_folder")
def test_recorded_answers_are_found_by_the_prompts_of_today(tmp_path: Path, row: str) -> None:
    """A changed word of a prompt, such as the name of a rule in its examples, would lose them."""
    (entry,) = entries_named(ENTRIES, ["choice/table3"])
    read = entry.read()
    (column, *_), method = read.federations, read.rows[row]
    answers = recorded_answers(entry.path.with_name(ANSWERS), [])
    built = built_federation(column, experiment.arguments(read.federations[column]), answers)
    with open_federation(built, tmp_path) as runner:
        task = ChoiceTask(runner, 0, settings=experiment.arguments(method.settings))
        assert runner.space.contains(recommender_named("LLM").choose(task).spec)


def test_flash_s_weights_are_those_of_training_and_of_the_policy() -> None:
    """Figure 5 varies one pair (α, β), of the one robust loss L."""
    (entry,) = entries_named(ENTRIES, ["selection/fig5"])
    found = entry.read()
    for row, column in found.cells():
        method = found.rows[row]
        assert isinstance(method, experiment.Train)
        config = read_config([*experiment.arguments(found.federations[column]), *experiment.arguments(method.settings)])
        policy = parse_selection(config.selection or {})
        assert isinstance(policy, FlashSpec)
        assert (policy.alpha, policy.beta) == (config.training.pseudo_label_weight, config.training.reverse_weight)
        assert row == f"α {policy.alpha:g}, β {policy.beta:g}"
