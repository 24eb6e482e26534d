"""What counts as an answer, however it is wrapped, and what does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import numpy as np
import pytest

from fedscout.engine.messages.calls import Cohort
from fedscout.search.language_model import ChatReply
from fedscout.search.recommenders.prompt import (
    LONGEST_ANSWER,
    LONGEST_REASON,
    Answer,
    AnswerError,
    answer_document,
    answer_schema,
    read_answer,
)
from fedscout.strategies import (
    CustomSpec,
    FedAvgSpec,
    FedProxSpec,
    KrumSpec,
    MultiKrumSpec,
    RealRange,
    SearchSpace,
    space_of,
)

COHORT = Cohort(num_clients=10, num_sampled=10, client_learning_rate=0.2)
SPACE = space_of(COHORT)
CUSTOM = CustomSpec.model_validate(
    {
        "path": "flwr.serverapp.strategy:FedTrimmedAvg",
        "values": {"weighted_by_key": "num-examples"},
        "ranges": {"beta": {"low": 0.0, "high": 0.3}},
    }
)
SPACES = {
    "default": SPACE,
    "wide": space_of(COHORT, ranges="wide"),
    "four clients": space_of(Cohort(4, 4, 0.2)),
    "with client parameters": space_of(COHORT, client_ranges={"client_learning_rate": RealRange(0.01, 1, log=True)}),
    "with a user's own": space_of(COHORT, kinds=("fedavg",), customs=[CUSTOM]),
}
PROX = json.dumps({"reason": "why not", "strategy": {"kind": "fedprox", "proximal_mu": 0.01}})


def read(text: str, space: SearchSpace = SPACE, **fields: Any) -> Answer:
    return read_answer(ChatReply(text=text, **fields), space)


def faults(text: str, space: SearchSpace = SPACE, **fields: Any) -> tuple[str, ...]:
    with pytest.raises(AnswerError) as caught:
        read(text, space, **fields)
    for fault in caught.value.faults:
        assert "\n" not in fault
        assert len(fault) < 1000
    return caught.value.faults


@pytest.mark.parametrize("name", SPACES)
def test_every_configuration_of_a_space_can_be_answered_and_fits_the_schema(name: str) -> None:
    space = SPACES[name]
    schema = answer_schema(space)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    generator = np.random.default_rng(1)
    for _ in range(60):
        spec = space.random(generator)
        document = answer_document(spec, "because")
        validator.validate(document)
        assert read(json.dumps(document), space) == Answer(spec, "because")


@pytest.mark.parametrize("name", SPACES)
def test_the_schema_stays_within_what_servers_can_hold_a_model_to(name: str) -> None:
    def check(schema: Any) -> None:
        if isinstance(schema, list):
            for part in schema:
                check(part)
        if not isinstance(schema, dict):
            return
        assert "oneOf" not in schema
        assert not [key for key in schema if key.startswith("x-")]
        if schema.get("type") == "object":
            assert schema["additionalProperties"] is False
            assert schema["required"] == list(schema["properties"])
        for part in schema.values():
            check(part)

    schema = answer_schema(SPACES[name])
    assert schema["type"] == "object"
    check(schema)


@pytest.mark.parametrize(
    "text",
    [
        PROX,
        f"  \n{PROX}\n",
        '{"kind": "fedprox", "proximal_mu": 0.01}',
        f"```json\n{PROX}\n```",
        f"Here you are:\n```\n{PROX}\n```\nGood luck!",
        f"I would take {PROX} as {{clients}} differ.",
        f"First {PROX}. To say it again: {PROX}",
        f"```python\nprint('{{}}')\n```\n```json\n{PROX}\n```",
        '{"strategy": {"kind": "fedprox", "proximal_mu": 0.01}, "confidence": 0.9}',
        '{"strategy": {"kind": "fedprox", "proximal_mu": 0.01}',  # small models forget the last brace
    ],
)
def test_an_answer_is_found_however_it_is_wrapped(text: str) -> None:
    assert read(text).spec == FedProxSpec(proximal_mu=0.01)


def test_a_reason_has_a_limit_in_the_schema_and_a_longer_one_is_cut() -> None:
    validator = jsonschema.Draft202012Validator(answer_schema(SPACE))
    for length, fits in ((LONGEST_REASON, True), (LONGEST_REASON + 1, False)):
        document = answer_document(FedAvgSpec(), "y" * length)
        assert validator.is_valid(document) == fits
        assert read(json.dumps(document)).reason.rstrip(" …") == "y" * LONGEST_REASON


def test_numbers_are_what_json_says_they_are() -> None:
    found = read('{"kind": "krum", "num_malicious_nodes": 2.0}').spec
    assert found == KrumSpec(num_malicious_nodes=2)
    assert isinstance(found.search_values()["num_malicious_nodes"], int)
    assert read('{"kind": "fedprox", "proximal_mu": 1}').spec == FedProxSpec(proximal_mu=1.0)


@pytest.mark.parametrize(
    ("text", "subject", "named"),
    [
        ("", "the answer", ["got nothing"]),
        (" \n\t ", "the answer", ["got nothing"]),
        ("FedProx, I think.", "the answer", ["'kind'", "got none"]),
        ("[1, 2]", "the answer", ["'kind'", "got none"]),
        ('{"reason": "x"}', "the answer", ["'kind'", "got none"]),
        ('{"strategy": "fedprox"}', "the answer", ["'kind'", "got none"]),
        ('{"kind": "fedavg"} or {"kind": "fedmedian"}', "the answer", ["got 2"]),
        ('{"kind": "fedsgd"}', "kind", ["fedavg, fedprox, fedavgm,", "'fedsgd'"]),
        ('{"kind": ["fedavg"]}', "kind", ["['fedavg']"]),
        ('{"kind": "custom", "path": "os:system", "values": {}}', "kind", ["'custom'"]),
        ('{"kind": "fedprox"}', "proximal_mu", ["fedprox", "[0.0001, 1] (log)"]),
        ('{"kind": "fedprox", "proximal_mu": 7}', "proximal_mu", ["fedprox", "[0.0001, 1] (log)", "got 7"]),
        ('{"kind": "fedprox", "proximal_mu": "0.1"}', "proximal_mu", ["fedprox", "got '0.1'"]),
        ('{"kind": "fedprox", "proximal_mu": true}', "proximal_mu", ["fedprox", "got True"]),
        ('{"kind": "fedprox", "proximal_mu": NaN}', "the answer", ["'kind'", "got none"]),
        ('{"kind": "fedprox", "proximal_mu": 1e999}', "proximal_mu", ["fedprox", "got inf"]),
        ('{"kind": "krum", "num_malicious_nodes": 8}', "num_malicious_nodes", ["krum", "0 … 7", "got 8"]),
        ('{"kind": "krum", "num_malicious_nodes": 1.5}', "num_malicious_nodes", ["krum", "0 … 7", "got 1.5"]),
        (
            '{"kind": "multikrum", "num_malicious_nodes": 3, "num_nodes_to_select": 8}',
            "num_nodes_to_select",
            ["multikrum", "1 … 7", "got 8"],
        ),
        ('{"kind": "fedavg", "eta": 1}', "'eta'", ["fedavg"]),
        ('{"kind": "fedavg", "sample_scaling": "uniform"}', "'sample_scaling'", ["fedavg"]),
        ('{"kind": "fedavg", "__class__": "x"}', "'__class__'", ["fedavg"]),
        ("x" * (LONGEST_ANSWER + 1), "the answer", [f"{LONGEST_ANSWER}", f"got {LONGEST_ANSWER + 1}"]),
    ],
)
def test_what_is_no_answer_is_refused_with_its_fault(text: str, subject: str, named: list[str]) -> None:
    fault = faults(text)[0]
    assert fault.startswith(f"{subject} ")
    assert [name for name in named if name not in fault] == []


def test_every_fault_of_an_answer_is_told() -> None:
    text = '{"kind": "fedadam", "eta": 9, "tau": 0.001, "beta_1": 2, "beta_2": 0.99, "gamma": 1}'
    assert [fault.split()[0] for fault in faults(text)] == ["eta", "beta_1", "'gamma'"]


def test_a_range_that_depends_on_another_parameter_is_held() -> None:
    text = '{"kind": "multikrum", "num_malicious_nodes": 3, "num_nodes_to_select": 7}'
    assert read(text).spec == MultiKrumSpec(num_malicious_nodes=3, num_nodes_to_select=7)


def test_what_the_cohort_forbids_is_refused_with_the_reason() -> None:
    space = space_of(Cohort(2, 2, 0.2))
    (fault,) = faults('{"kind": "krum", "num_malicious_nodes": 0}', space)
    assert "krum" in fault
    assert "got 2" in fault


def test_a_cut_off_or_withheld_answer_is_none_even_if_an_object_can_be_found_nor_is_a_refusal() -> None:
    for finish_reason in ("length", "content_filter"):
        assert faults(PROX, finish_reason=finish_reason)
    (fault,) = faults("", refusal="I can't\nhelp with that.")
    assert "I can't help with that." in fault


@pytest.mark.parametrize(
    "hostile",
    [
        "{" * 15_000,
        '{"a":' * 3_000,
        "[" * 15_000,
        '{"kind": "fedavg", "x": ' + "[" * 9_000 + "]" * 9_000 + "}",
        "```" * 5_000,
        "```\n" * 4_000,
        "```" + "\n" * 15_000,
        "```" + " " * 15_000,
        '{"kind": ' + "9" * 15_000 + "}",
        '{"kind": "' + "\\u0000" * 2_000 + '"}',
        '{"a": "{\\"kind\\": ' * 800,
    ],
)
def test_an_answer_made_to_break_the_reader_is_refused_at_once(hostile: str, deadline: Callable[[float], None]) -> None:
    deadline(2.0)
    assert faults(hostile)


def test_a_reason_can_not_command_the_terminal() -> None:
    reason = "good\x1b[2J\r\nfedscout: all is well\x07" + "x" * 3000
    found = read(json.dumps({"reason": reason, "strategy": {"kind": "fedavg"}}))
    assert found.spec == FedAvgSpec()
    assert found.reason.isprintable()
    assert LONGEST_REASON <= len(found.reason) <= LONGEST_REASON + 2
    assert read('{"reason": {"a": 1}, "strategy": {"kind": "fedavg"}}').reason == ""
