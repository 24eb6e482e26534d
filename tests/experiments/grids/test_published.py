"""The published tables: every file is read at every scale, and every training that is named can be configured."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments import published, suites
from fedscout.experiments.grids.catalogue import Entry, catalogue, entries_named
from fedscout.experiments.grids.experiment import arguments
from fedscout.experiments.grids.federation_runner import read_config
from fedscout.experiments.grids.methods import Detect, Train, imported
from fedscout.experiments.studies.workflow import with_strategy
from fedscout.strategies import parse_selection, parse_strategy
from fedscout.strategies.selection.bandits import FlashSpec

FOLDER = Path(published.__file__).parent
ENTRIES = catalogue(FOLDER)
SUITES = catalogue(Path(suites.__file__).parent)
SCALES = ("laptop", "published")
EVERY = [pytest.param(entry, scale, id=f"{entry.name}-{scale}") for entry in (*ENTRIES, *SUITES) for scale in SCALES]


@pytest.mark.sampled(40)
@pytest.mark.parametrize(("entry", "scale"), EVERY)
def test_every_cell_can_be_configured(entry: Entry, scale: str) -> None:
    experiment = entry.read(scale)
    printed, cells = experiment.printed(), {*experiment.cells()}
    assert printed.keys() <= cells
    assert all(one.first != one.second and {one.first, one.second} <= cells for one in experiment.said())
    if experiment.measured_by is not None:
        assert callable(imported(experiment.measured_by.function)(**experiment.measured_by.arguments).measure)
        return
    for row, column in {(row, next(iter(experiment.federations))) for row in experiment.rows} | {
        (next(iter(experiment.rows)), column) for column in experiment.federations
    }:
        method = experiment.rows[row]
        assert method is not None
        own = arguments(method.settings) if isinstance(method, Train | Detect) else ()
        config = read_config([*arguments(experiment.federations[column]), *own])
        parse_strategy(with_strategy(config).strategy or {})


def test_every_file_is_listed_and_every_name_is_one_table_s() -> None:
    names = [f"{entry.source}/{name}" for entry in ENTRIES for name in (entry.table, *entry.also)]
    assert len(names) == len({*names})
    files = {path for path in FOLDER.glob("*/*.yaml") if path.name != "source.yaml"}
    assert files == {entry.path for entry in ENTRIES}


def test_a_table_is_found_by_each_of_its_names_and_a_source_s_name_is_all_of_them() -> None:
    assert entries_named(ENTRIES, ["choice/table4"]) == entries_named(ENTRIES, ["choice/table6"])
    both = entries_named(ENTRIES, ["selection", "selection/table1"])
    assert both == [entry for entry in ENTRIES if entry.source == "selection"]
    assert entries_named(ENTRIES, []) == ENTRIES
    with pytest.raises(ConfigurationError):
        entries_named(ENTRIES, ["choice/tabel6"])


def test_flash_s_weights_are_those_of_training_and_of_the_policy() -> None:
    """Figure 5 varies one pair (α, β), of the one robust loss L."""
    (entry,) = entries_named(ENTRIES, ["selection/fig5"])
    experiment = entry.read()
    for row, column in experiment.cells():
        method = experiment.rows[row]
        assert isinstance(method, Train)
        config = read_config([*arguments(experiment.federations[column]), *arguments(method.settings)])
        policy = parse_selection(config.selection or {})
        assert isinstance(policy, FlashSpec)
        assert (policy.alpha, policy.beta) == (config.training.pseudo_label_weight, config.training.reverse_weight)
        assert row == f"α {policy.alpha:g}, β {policy.beta:g}"
