"""The table of the six scenarios: its defaults, and which columns it fills."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedscout.experiments.benchmarks.detection.scenario_separability import (
    PUBLISHED,
    ScenarioRow,
    Separability,
    scenario_bench_config,
    table_lines,
)
from fedscout.experiments.federations.scenarios.published_scenarios import BEARING_SCENARIOS


def result(dataset: str, num_clients: int = 4) -> Separability:
    rows = [
        ScenarioRow(
            scenario=scenario,
            affected_clients=(2,),
            label_divergence=0.125,
            centroid_distance=None,
            outlier_votes={0: 1, 2: 4},
            outlier_clients=(2,),
            found=("label_skew",),
        )
        for scenario in BEARING_SCENARIOS
    ]
    return Separability(dataset=dataset, num_clients=num_clients, repetitions=5, seed=0, rows=tuple(rows))


def test_published_figures_are_of_the_scenarios() -> None:
    assert list(PUBLISHED) == list(BEARING_SCENARIOS)


def test_defaults_are_the_published_federation_in_this_process() -> None:
    config = scenario_bench_config([], None)
    federation = config.federation
    assert (federation.dataset, federation.num_clients, config.engine.grid) == ("bearing", 4, "local")


def test_arguments_and_a_file_win_over_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "bench.conf"
    file.write_text("federation: {dataset: wine}\n")
    config = scenario_bench_config(["federation.num_clients=6"], file)
    assert (config.federation.dataset, config.federation.num_clients, config.engine.grid) == ("wine", 6, "local")


@pytest.mark.parametrize(
    ("dataset", "num_clients", "shown"), [("bearing", 4, True), ("bearing", 5, False), ("wine", 4, False)]
)
def test_published_figures_stand_beside_the_published_federation_alone(
    dataset: str, num_clients: int, shown: bool
) -> None:
    text = "\n".join(table_lines(result(dataset, num_clients)))
    assert ("15.060" in text) == ("0.1890" in text) == shown


def test_a_row() -> None:
    title, blank, headings, rule, *rows = table_lines(result("wine"))
    assert (title.startswith("wine, 4 clients"), blank) == (True, "")
    assert len(rows) == len(BEARING_SCENARIOS)
    assert {line.count("|") for line in (headings, rule, *rows)} == {10}
    assert rows[0] == "| iid | 2 | 0.1250 |  | not measured |  | 1, **4** |  | label skew |"
