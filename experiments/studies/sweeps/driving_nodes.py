"""The nodes of a cluster that drive a sweep's studies: those on which a study rests on what it rests on here.

A study that needs one CPU needs no hosts, and the command's node could drive only as many as it has CPUs. So every node
drives as many as it has, if its data, code and versions are those of the command's node: each is asked, once. Studies
that read files which only the command's node is known to have, or ask a language model there, are driven there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from fedscout.engine.errors import UserError
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.studies.grid_choice import num_processors
from fedscout.search.search_config import ONE_SHOT

ANSWER_SECONDS = 120.0


def possible_nodes(ray: Any, configs: Sequence[StudyConfig]) -> dict[str, int]:
    """Return the CPUs of the nodes that may drive these studies, by the nodes' ids: all that have any, or the own."""
    own = own_node(ray)
    if any(rests_on_this_machine(config) for config in configs):
        return own
    cpus = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]}
    return {node: number for node, number in cpus.items() if number} or own


def own_node(ray: Any) -> dict[str, int]:
    """Return the id and the CPUs of the node where the command runs: those that it has if it offers none to tasks."""
    own = ray.get_runtime_context().get_node_id()
    (offered,) = (node["Resources"].get("CPU", 0) for node in ray.nodes() if node["NodeID"] == own)
    return {own: int(offered) or num_processors()}


def rests_on_this_machine(config: StudyConfig) -> bool:
    """Whether a study reads files, or asks a server, that its configuration names and other nodes may lack."""
    from fedscout.search.study.searcher_table import ASKS_A_LANGUAGE_MODEL

    asks = config.search.kind in {*ASKS_A_LANGUAGE_MODEL, ONE_SHOT}
    return asks or bool(config.search.warm_start) or config.client_settings.kind is not None


def differing(configs: Sequence[StudyConfig]) -> list[StudyConfig]:
    """Return one of the studies for each data set, model and strategy."""
    found: dict[str, StudyConfig] = {}
    for config in configs:
        named = [config.model.kind, config.federation.embedding, config.strategy, *config.search.customs]
        found.setdefault(json.dumps([config.federation.dataset, *named], default=str), config)
    return list(found.values())


def what_studies_rest_on(configs: Sequence[StudyConfig]) -> list[Any]:
    """Return versions, and of each study digests of data and of a user's own code, or why it can't be done here."""
    from fedscout.experiments.federations.assembly.build_federation import build_federation, data_digest
    from fedscout.experiments.studies.own_code import federation_code, strategy_code
    from fedscout.experiments.studies.versions import versions

    found: list[Any] = [versions()]
    for config in configs:
        try:
            data = data_digest(build_federation(config.federation, config.model))
        except UserError as mistake:
            data = str(mistake)
        found.append([data, dict(federation_code(config)), dict(strategy_code(config))])
    return found


def nodes_like(ray: Any, own: str, workers: Mapping[str, Any], configs: Sequence[StudyConfig]) -> set[str]:
    """Return the nodes whose workers answer in time, and as that of the command's own node does."""
    from ray.exceptions import RayError

    calls = {worker.rests_on.remote(differing(configs)): node for node, worker in workers.items()}
    ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=ANSWER_SECONDS)
    answers: dict[str, Any] = {}
    for call in ready:
        with suppress(RayError):
            answers[calls[call]] = ray.get(call)
    return {node for node, answer in answers.items() if answer == answers.get(own)}
