"""No policy passes a client over for ever unless it says so: in the documentation's table and where it is written.

Clients differ for good, in loss, rows and speed, and all answer: whoever is passed over then is passed over by design.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedscout.engine.messages.calls import SelectionPolicy
from fedscout.strategies.selection.table import SELECTIONS, parse_selection
from tests.strategies.selection.reports import cohort, report, table

NUM_CLIENTS, NUM_SAMPLED, NUM_ROUNDS = 24, 5, 400
PAGE = Path(__file__).resolve().parents[3] / "docs" / "selection.md"
SAYS_SO = re.compile(r"no client is promised a turn|may starve|never train while", re.IGNORECASE)


def passed_over() -> dict[str, str]:
    """Return the column "clients that may never train" of the page's table, by kind."""
    lines = PAGE.read_text().splitlines()
    head = next(number for number, line in enumerate(lines) if line.endswith("| clients that may never train |"))
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[head + 2 :])
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    return {first.strip("`"): last for first, *_, last in cells}


COLUMN = passed_over()


def in_full(kind: str) -> str:
    """Return what the page says, also of a policy of which it says that it is as another."""
    said = COLUMN[kind]
    return in_full(said.removeprefix("as ").lower()) if said.startswith("as ") else said


def rounds_of(policy: SelectionPolicy) -> Iterator[list[int]]:
    """Yield who trains in each round; half of the clients have next to no loss, and one takes ten times as long."""
    losses = np.where(np.arange(NUM_CLIENTS) % 2, 2.0, 0.01) + 0.001 * np.arange(NUM_CLIENTS)
    norms = np.where(np.arange(NUM_CLIENTS) % 3, 1.0, 0.01)
    clients = table(NUM_CLIENTS, rows=[5 + 3 * client for client in range(NUM_CLIENTS)], seconds=[10.0, *[1.0] * 23])
    for server_round in range(1, NUM_ROUNDS + 1):
        generator = np.random.default_rng([5, server_round])
        chosen = sorted(np.asarray(policy.choose(server_round, clients, NUM_SAMPLED, generator)).tolist())
        yield chosen
        told = [*range(NUM_CLIENTS)] if policy.observes.include_idle_clients else chosen
        trained = [client in chosen for client in told]
        policy.observe(
            report(server_round, told, losses[told].tolist(), update_norm=norms[told].tolist(), trained=trained)
        )


def test_the_page_tells_of_every_policy() -> None:
    assert {*COLUMN} == {*SELECTIONS}
    assert not COLUMN["custom"], "that is the user's own"


@pytest.mark.parametrize("kind", [kind for kind in SELECTIONS if kind != "custom"])
def test_nobody_starves_unless_the_policy_says_so(kind: str) -> None:
    said = in_full(kind)
    policy = parse_selection(kind).build(cohort(NUM_CLIENTS, NUM_SAMPLED))
    if said != "none":
        modules = [type(policy).__module__, SELECTIONS[kind].__module__]
        texts = [type(policy).__doc__, *(sys.modules[module].__doc__ for module in modules)]
        assert any(SAYS_SO.search(" ".join((text or "").split())) for text in texts)
    if said != "none" and not said.startswith("after one round each"):
        return
    rounds = [*rounds_of(policy)]
    assert {*range(NUM_CLIENTS)} == {client for chosen in rounds for client in chosen}
    if said == "none":
        for part in (rounds[: NUM_ROUNDS // 2], rounds[NUM_ROUNDS // 2 :]):
            assert {*range(NUM_CLIENTS)} == {client for chosen in part for client in chosen}
