"""`fedscout bench noise-columns` on bundled data."""

from __future__ import annotations

import json

from tests.experiments.cli.conftest import Cli


def test_the_command_measures_without_added_columns_first(cli: Cli) -> None:
    done = cli(
        "bench", "noise-columns", "--columns", "3", "--seeds", "1", "--skewed", "4", "federation.dataset=wine", "--json"
    )
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert [row["num_noise"] for row in document["rows"]] == [0, 3]
    assert document["num_skewed"] == 4


def test_numbers_of_columns_ascend(cli: Cli) -> None:
    done = cli("bench", "noise-columns", "--columns", "200,50")
    assert done.code == 2
    assert "--columns must be ascending numbers >= 1, such as 1,2,4, got '200,50'" in done.err
