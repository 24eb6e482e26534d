"""What was trained elsewhere for a choice: each training once, never of the chooser's own federation."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fedscout.engine.trials.trial_record import Trial
from fedscout.experiments.benchmarks.choice.choice_archives import rested_on, together, trained_by
from fedscout.experiments.benchmarks.choice.choice_choosers import CHOOSERS
from fedscout.experiments.benchmarks.choice.joint_battery import SPACE
from fedscout.experiments.benchmarks.choice.replay import ReplayLaboratory
from fedscout.experiments.benchmarks.choice.replay_measurement import replay
from fedscout.experiments.benchmarks.choice.trial_table import PUBLISHED, read_table
from fedscout.search.recommenders.recommendation import Alternative
from fedscout.search.study.priors import SOURCE
from fedscout.search.study.study import StudyOutcome
from fedscout.search.study_trials import BASELINE
from fedscout.strategies import FedAdamSpec
from tests.experiments.benchmarks.made_up_tables import SEEDS, by_rate, federation
from tests.search.studies import FACTS

ADAM = FedAdamSpec(eta=0.3)


def trial(spec: object, rounds: int | None = None) -> Trial:
    settings = FACTS.trial("search", spec, num_rounds=rounds)  # type: ignore[arg-type]
    scores = dict.fromkeys(("round_accuracy", "round_clean_accuracy"), (0.5,) * (rounds or FACTS.num_rounds))
    return Trial.of(settings, status="completed", **scores)


def test_a_study_trained_fedavg_and_of_each_configuration_its_longest_training() -> None:
    outcome = StudyOutcome(trial(BASELINE), [trial(ADAM, 1), trial(ADAM, 2)])
    found = trained_by(outcome, FACTS, "here")
    assert sum(found.values()) == pytest.approx(1 + 2 / FACTS.num_rounds)


def test_what_two_studies_share_is_trained_once_and_other_seeds_and_federations_are_others() -> None:
    outcome = StudyOutcome(trial(BASELINE), [trial(ADAM)])
    here = trained_by(outcome, FACTS, "here")
    other_seed = replace(FACTS, session=replace(FACTS.session, seed=FACTS.session.seed + 1))
    assert together([here, here]) == here
    assert sum(together([here, trained_by(outcome, FACTS, "there")]).values()) == 4
    assert sum(together([here, trained_by(outcome, other_seed, "here")]).values()) == 4


@pytest.mark.slow
def test_priors_rest_on_all_trials_of_the_development_half_but_those_of_the_own_data() -> None:
    table = read_table(PUBLISHED)
    trials = {each.about.name: len(each.trials) for each in table if each.about.half == "development"}
    informed = StudyOutcome(
        trial(BASELINE),
        first_generation=(Alternative(ADAM, "It gained.", SOURCE), Alternative(ADAM, "A rule.", "paper")),
    )
    new = replace(FACTS, config=json.dumps({"federation": {"dataset": "mine"}}), config_hash="new", data_digest="new")
    assert rested_on(informed, new) == trials
    own = next(each for each in table if each.about.name == "wine, feature skew, 4 clients")
    laboratory = ReplayLaboratory(own)
    known = laboratory.ledger(laboratory.config).facts
    assert rested_on(informed, known) == {name: n for name, n in trials.items() if not name.startswith("wine, ")}
    assert rested_on(replace_first(informed, "paper"), new) == {}


def replace_first(outcome: StudyOutcome, source: str) -> StudyOutcome:
    """Return it with a first generation that other sources gave."""
    return replace(outcome, first_generation=tuple(replace(each, source=source) for each in outcome.first_generation))


@pytest.mark.slow
def test_a_warm_start_counts_the_other_development_federations() -> None:
    """Of two made-up ones, FedAvg and eight trials each; the held-out one reads both, the others each other."""
    table = [federation(by_rate, name=name) for name in ("one", "two")]
    # the same data would be left out
    one, two = (replace(each, about=each.about.model_copy(update=changed(place))) for place, each in enumerate(table))
    held = replace(one, about=one.about.model_copy(update={**changed(2), "half": "held out", "name": "held out"}))
    report = replay([one, two, held], [CHOOSERS["genetic 8"], CHOOSERS["warm start 8"]])
    archives = {(c.federation, c.seed): c.archive for c in report.choices if c.chooser == "warm start 8"}
    assert {archives[name, seed] for name in ("one", "two") for seed in SEEDS} == {9}
    assert {archives["held out", seed] for seed in SEEDS} == {18}
    assert {c.archive for c in report.choices if c.chooser == "genetic 8"} == {0}


def changed(place: int) -> dict[str, object]:
    """Return what makes a federation another one."""
    arguments = tuple(a for a in federation(by_rate).about.arguments if a not in SPACE)
    data = ("digits", "wine", "breast_cancer")[place]
    return {"arguments": (*arguments, f"federation.dataset={data}"), "data_digest": str(place)}
