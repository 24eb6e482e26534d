"""The policies by which a study chooses who trains, checked before anything does: each can, and has enough clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from fedscout.engine.contracts.client_selection import SelectionPolicy
from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, StrategyError
from fedscout.engine.grid.able_clients import able_clients
from fedscout.engine.messages.host_calls import FederationFacts
from fedscout.engine.messages.session import Session
from fedscout.engine.trials.trial_settings import TrialSettings
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.federations.environments.environment_table import ENVIRONMENTS
from fedscout.experiments.studies.client_settings import client_table_of
from fedscout.experiments.studies.simulated_clock import driver_facts, session_of
from fedscout.strategies import SelectionSpec, StrategySpec, named_selection, parse_selection


def own_selection(config: StudyConfig) -> SelectionSpec | None:
    """Return the policy that is configured, whether or not it can choose among the study's clients; None without one.

    Raises:
        StrategyError: If it is no policy.
    """
    return None if config.selection is None else parse_selection(config.selection)


def selection_of(config: StudyConfig, cohort: Cohort) -> SelectionSpec | None:
    """Return who trains in a round where a strategy does not say; None leaves that to the strategy.

    Raises:
        StrategyError: If it is no policy, or one that is asked for can't choose among these clients.
    """
    own = named_selection(None, own_selection(config), cohort)
    _check_labels(config, cohort, [own, named_selection((config.strategy or {}).get("selection"), own, cohort)])
    return own


def searched_policies(config: StudyConfig, cohort: Cohort) -> list[SelectionSpec]:
    """Return the policies that a search chooses from, the study's with its parameters; none if it keeps the study's.

    Raises:
        StrategyError: As `selection_of`.
    """
    own = selection_of(config, cohort)
    policies = [named_selection(kind, own, cohort) for kind in config.search.selection or ()]
    _check_labels(config, cohort, policies)
    return policies


def check_able_clients(
    config: StudyConfig,
    federation: Federation,
    cohort: Cohort,
    spec: StrategySpec,
    policies: Iterable[SelectionSpec | None],
) -> None:
    """Return if there are as many clients as score a model, and each policy has as many to choose from as train.

    Args:
        config: Of the study.
        federation: Its clients.
        cohort: The facts of those that take part.
        spec: What they train; of a search FedAvg, with which it begins.
        policies: Who chooses; None leaves that to the strategy, and is no matter.

    Raises:
        ConfigurationError: If too many could never train, or more score than there are.
    """
    if (num_scored := config.training.scored_clients or 0) > federation.num_seen:
        raise ConfigurationError(
            f"training.scored_clients must be at most {federation.num_seen}, the clients that take part, got "
            f"{num_scored}"
        )
    for selection in policies:
        if selection is None:
            continue
        session = replace(session_of(config, spec), client_table=client_table_of(config, federation))
        asked = TrialSettings(spec, 1, cohort.num_sampled, session, selection=selection)
        facts, policy = driver_facts(federation), selection.build(cohort)
        num_able = int(np.count_nonzero(able_clients(facts, asked.session, policy)))
        if num_able < cohort.num_sampled:
            raise ConfigurationError(
                f"selection.kind={selection.label} must have the {cohort.num_sampled} clients to choose from that "
                f"training.fraction_train asks for, got {num_able} of {cohort.num_clients} that can ever train"
                + _reasons(facts, asked.session, policy)
            )


def _reasons(facts: FederationFacts, session: Session, policy: SelectionPolicy) -> str:
    """Return why the others can't."""
    in_time = able_clients(facts, replace(session, deadline_seconds=None), policy)
    num_late = np.count_nonzero(in_time & ~able_clients(facts, session, policy))
    num_abstaining = facts.num_seen - np.count_nonzero(in_time)
    told = []
    if num_abstaining:
        least = facts.least_training_rows
        told.append(f"{num_abstaining} train on fewer rows than federation.min_release={least} and abstain")
    if num_late:
        told.append(f"{num_late} take longer than training.simulated_deadline_seconds={session.deadline_seconds:g}")
    return ": " + ", ".join(told)


def _check_labels(config: StudyConfig, cohort: Cohort, policies: Iterable[SelectionSpec | None]) -> None:
    """Return unless policies measure losses on labels where clients play, and have none."""
    for spec in policies if config.federation.dataset in ENVIRONMENTS else ():
        if spec is not None and spec.build(cohort).observes.losses:
            raise StrategyError(spec.without_labels)
