"""The configuration: where it comes from, which mistakes are told and how, and what its digest depends on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.experiments.config import StudyConfig, TrainingConfig, flattened, known_keys, load_config
from fedscout.search import config as recommender_settings


def faults(*arguments: str, file: Path | None = None) -> tuple[Fault, ...]:
    with pytest.raises(ConfigurationError) as caught:
        load_config(arguments, file)
    for fault in caught.value.faults:
        assert "\n" not in fault
    return caught.value.faults


def value_of(config: StudyConfig, key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


@pytest.fixture
def yaml_file(tmp_path: Path) -> Path:
    file = tmp_path / "study.yaml"
    file.write_text("seed: 5\ntraining:\n  num_rounds: 7\n  batch_size: 16\nmodel:\n  hidden: [8]\n")
    return file


# Where values come from.


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("federation.partition.alpha=1e-3", 0.001),
        ("model.hidden=[32,16]", (32, 16)),
        ("search.strategies=[krum,fedavg]", ("krum", "fedavg")),
        ("federation.num_clients=null", 10),
        ("engine.num_hosts=", None),
    ],
)
def test_dotted_keys(argument: str, expected: Any) -> None:
    assert value_of(load_config([argument]), argument.partition("=")[0]) == expected


def test_a_file_is_read_wherever_it_stands(yaml_file: Path) -> None:
    assert load_config([], yaml_file) == load_config([str(yaml_file)])
    config = load_config([], yaml_file)
    training = config.training
    assert (config.seed, training.num_rounds, training.batch_size, config.model.hidden) == (5, 7, 16, (8,))


def test_later_ones_win_and_the_option_s_file_lies_under_all(yaml_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yml"
    other.write_text("seed: 6\n")
    assert load_config(["seed=1", "seed=2"]).seed == 2
    assert load_config(["seed=1"], yaml_file).seed == 1
    assert load_config(["seed=1", str(yaml_file)]).seed == 5
    assert load_config([str(other), "seed=1"], yaml_file).seed == 1
    merged = load_config([str(other), "training.batch_size=4"], yaml_file)
    assert (merged.seed, merged.training.num_rounds, merged.training.batch_size) == (6, 7, 4)


# Mistakes.


@pytest.mark.parametrize(
    ("key", "suggested"),
    [
        ("training.learning_rat", "training.learning_rate"),
        ("trainig.num_rounds", "training"),
        ("dataset", "federation.dataset"),
        ("model.learning_rate", "training.learning_rate"),
        ("num_round", "training.num_rounds"),
    ],
)
def test_an_unknown_key_is_answered_with_what_may_be_meant(key: str, suggested: str) -> None:
    (fault,) = faults(f"{key}=1")
    assert key.startswith(str(fault.key))
    assert suggested in str(fault.hint).rstrip("?").split(" ")


def test_nothing_is_suggested_for_a_key_of_a_list_s_entry() -> None:
    (fault,) = faults("federation.physics=[{gravit: 3}]")
    assert not fault.hint


WRONG_VALUES = (
    *("seed=abc", "seed=-1", "seed=1.5", "seed=", "seed=true", "seed=${oc.env:HOME}", "training.optimizer=lion"),
    *("training.learning_rate=0", "training.learning_rate=.nan", "training.trial_timeout_seconds=.inf"),
    *("federation.dataset=imagenet", "federation=wine", "federation=", "federation.num_clients=true"),
    *("strategy=fedadam", "model.hidden=32", "model.hidden=[]", "search.strategies=3", "search.kind=magic"),
)


@pytest.mark.parametrize(
    ("argument", "key"),
    [
        *((argument, argument.partition("=")[0]) for argument in WRONG_VALUES),
        ("federation.dataset.x=1", "federation.dataset"),
        ("model.hidden=[32,x]", "model.hidden.1"),
        ("model.hidden=[8, true]", "model.hidden.1"),
        ("search.tuning_factors=[-1]", "search.tuning_factors.0"),
        ("federation.scenario={kind: label_flip, rate: true}", "federation.scenario.0.rate"),
    ],
)
def test_a_wrong_value_is_answered_under_its_key(argument: str, key: str) -> None:
    (fault,) = faults(argument)
    assert fault.subject == key


@pytest.mark.parametrize("argument", ["foo", "=3", " =3", "study.json", "model.hidden=[1", "seed={", "seed=${"])
def test_what_is_no_argument_or_no_yaml(argument: str) -> None:
    (fault,) = faults(argument)
    key = argument.partition("=")[0].strip()
    assert fault.key == (key if key in {"model.hidden", "seed"} else "an argument")
    assert str(fault.given).startswith(repr(argument))


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    found = faults("foo", "seed=abc", "training.batch_size=0", "nokey=1", str(tmp_path / "missing.yaml"), "seed2=[")
    keys = ["an argument", "the configuration file", "seed2", "training.batch_size", "seed", "nokey"]
    assert [fault.key for fault in found] == keys


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (b"seed: [", "study.yaml"),
        (b"seed: 1\nseed: 2\n", "study.yaml"),
        (b"\xff\xfe\xfa", "study.yaml"),
        (b"- 1\n", "study.yaml"),
        (b"1: 2\n", "1"),
        (b"seed: !!python/object/apply:os.system [true]\n", "study.yaml"),
        (b"federation: {datset: wine}\n", "federation.datset"),
    ],
)
def test_a_file_must_be_yaml_with_known_keys(tmp_path: Path, content: bytes, key: str) -> None:
    file = tmp_path / "study.yaml"
    file.write_bytes(content)
    (fault,) = faults(file=file)
    assert fault.key == key


# Identity.

MACHINERY = {
    *(name for name in known_keys() if name.startswith("engine.")),
    *(f"recommender.{name}" for name in recommender_settings.EXCLUDED_FROM_IDENTITY),
    *("federation.folder", "federation.max_file_bytes", "federation.max_file_rows", "federation.max_query_seconds"),
}
OF_A_TABLE = {name for name in known_keys() if name.startswith("client_settings.")}
"""Which need a file: see the tests of client settings."""


def test_the_identity_is_every_key_but_the_machinery() -> None:
    assert {*flattened(StudyConfig().identity())} == {*known_keys()} - MACHINERY - OF_A_TABLE


@pytest.mark.parametrize(
    "argument", ["engine.num_hosts=3", "federation.task=classification", "training.metric=accuracy"]
)
def test_the_digest_is_without_machinery_and_what_the_data_tell(argument: str) -> None:
    assert load_config([argument]).digest() == StudyConfig().digest()


@pytest.mark.parametrize(
    ("given", "beside", "key"),
    [
        ("federation.scenario=iid", "federation.partition.alpha=1", "federation.partition"),
        ("federation.dataset=cartpole", "training.precision=bfloat16", "training.precision"),
    ],
)
def test_what_another_key_rules_out_is_refused(given: str, beside: str, key: str) -> None:
    (fault,) = faults(given, beside)
    assert fault.key == key


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["federation.scenario=label_poisoning", "federation.num_clients=4"],
        ["federation.dataset=bearing", "federation.partition.kind=natural"],
        ["strategy.kind=fedadam", "strategy.eta=1e-3", "search.tuned_baseline=false", "model.hidden=[3]"],
    ],
)
def test_a_configuration_survives_being_written_and_read(arguments: list[str], tmp_path: Path) -> None:
    config = load_config(arguments)
    again = StudyConfig.model_validate(json.loads(config.model_dump_json()))
    assert again == config
    assert again.digest() == config.digest()
    file = tmp_path / "written.yaml"
    file.write_text(config.model_dump_json())  # JSON is YAML
    assert load_config([], file) == config


# Sampling.


@pytest.mark.parametrize(
    ("fraction", "num_clients", "num_sampled"), [(1.0, 7, 7), (0.5, 10, 5), (0.01, 10, 1), (0.34, 3, 1), (0.25, 10, 2)]
)
def test_number_of_clients_that_train(fraction: float, num_clients: int, num_sampled: int) -> None:
    assert TrainingConfig(fraction_train=fraction).num_sampled(num_clients) == num_sampled


def test_what_an_informed_search_begins_with_makes_another_study(monkeypatch: pytest.MonkeyPatch) -> None:
    informed, plain = (load_config([f"search.informed={said}"]) for said in ("true", "false"))
    before = informed.digest(), plain.digest()
    monkeypatch.setattr("fedscout.experiments.config.KNOWLEDGE", "another day")
    assert informed.digest() != before[0]
    assert plain.digest() == before[1]


@pytest.mark.parametrize("number", ["010", "08", "1:30", "1_0", "0x1F", "0b11", "0o17", "-007", "1_0.5", "190:20:30"])
def test_numbers_are_those_of_json(tmp_path: Path, number: str) -> None:
    """What YAML 1.1 reads as another number is refused wherever it stands, and is a text in quotes."""
    (tmp_path / "study.yaml").write_text(f"federation:\n  label: {number}\n")
    for argument in (f"seed={number}", f"search.budget=[{number}]", str(tmp_path / "study.yaml")):
        assert number in " ".join(faults(argument))
    assert load_config([f'federation.label="{number}"']).federation.label == number


@pytest.mark.parametrize("text", ["1", "yes", "two hospitals: A, [B] # and {C}", "C:\\data", "-", "*a", "ä😀", "[1]"])
def test_an_argument_of_a_key_of_text_needs_no_quotes(text: str) -> None:
    assert load_config([f"recommender.text={text}"]).recommender.text == text


@pytest.mark.parametrize(("written", "text"), [("null", None), ("", None), ("'null'", "null"), ('"a: b"', "a: b")])
def test_null_and_quotes_of_text_are_those_of_yaml(written: str, text: str | None) -> None:
    assert load_config([f"recommender.text={written}"]).recommender.text == text


@pytest.mark.parametrize("text", ["1", "yes"])
def test_a_number_is_no_text_but_in_quotes(tmp_path: Path, text: str) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(f"federation:\n  label: {text}\n")
    (fault,) = faults(file=file)
    assert fault.key == "federation.label"
    assert "quote" in fault
    file.write_text(f'federation:\n  label: "{text}"\n')
    assert load_config(file=file).federation.label == text
