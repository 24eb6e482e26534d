"""The driver under masked sums: what it trains is what it trains in the clear, what it can't do it says before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedscout import RealFederation, client_app
from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.engine.errors import ConfigurationError, StrategyError, TrialError
from fedscout.engine.messages.task_identity import claim_task_identity
from fedscout.engine.nodes.owner_policy import OwnerPolicy
from fedscout.experiments.config.config_file import load_config
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.deployment.agreement import Agreement
from fedscout.experiments.deployment.sums_only import beyond_sums
from fedscout.experiments.federations.assembly.build_federation import build_federation
from fedscout.strategies import parse_strategy
from fedscout.strategies.space.strategy_table import STRATEGIES
from tests.engine.nodes.node_link import NodeLink
from tests.experiments.deployment.test_real_federation import linked

SETTINGS = ["federation.num_clients=4", "federation.max_rows=400", "training.num_rounds=2", "engine.grid=local"]
SUMS_ALONE = OwnerPolicy(small_clients="train", sums_only=True)
DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.fixture(autouse=True)
def _identity() -> None:
    claim_task_identity()


@pytest.fixture(scope="module")
def config() -> StudyConfig:
    """A small study of digits."""
    return load_config(SETTINGS, None)


@pytest.fixture(scope="module")
def agreement(config: StudyConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agreement that it amounts to, as a file."""
    path = tmp_path_factory.mktemp("agreed") / "federation.json"
    path.write_text(Agreement.of_study(config).text)
    return path


def met(agreement: Path, out: Path, owner: OwnerPolicy = SUMS_ALONE, secure: bool = True, num_clients: int = 4) -> Any:
    """Return a driver that has met its clients, and the grid between them."""
    link = linked(client_app(agreement, policy=owner), *({"partition-id": client} for client in range(num_clients)))
    federation = RealFederation(link, agreement, out, secure=secure)
    federation.wait_for(num_clients, patience=5)
    return federation, link


@pytest.mark.slow
def test_a_model_that_is_trained_under_masks_has_the_bytes_of_one_in_the_clear(agreement: Path, tmp_path: Path) -> None:
    secure, link = met(agreement, tmp_path / "secure")
    plain, _ = met(agreement, tmp_path / "plain", OwnerPolicy(small_clients="train"), secure=False)
    strategy = {"kind": "scaffold"}
    trials = [federation.train(strategy) for federation in (secure, plain)]
    models = [load_file(tmp_path / out / "model.safetensors") for out in ("secure", "plain")]
    assert {name: array.tobytes() for name, array in models[0].items()} == {
        name: array.tobytes() for name, array in models[1].items()
    }
    assert trials[0].round_accuracy == pytest.approx(trials[1].round_accuracy, rel=1e-12)
    assert (trials[0].client, trials[1].client) == ((), (0, 1, 2, 3))
    assert_same_after_restart(agreement, link, tmp_path / "secure", strategy, trials[0])


def assert_same_after_restart(agreement: Path, link: NodeLink, out: Path, strategy: Any, trial: Any) -> None:
    """Check that a driver that is started again finds what was trained and asks for none of it."""
    sent = len(link.heard)
    again = RealFederation(link, agreement, out, secure=True)
    again.wait_for(4, patience=5)
    assert again.train(strategy).round_accuracy == trial.round_accuracy
    assert len(link.heard) - sent == 2 * 4


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        ({"kind": "krum"}, "krum looks at the model of each client"),
        ({"kind": "fedmedian"}, "fedmedian looks at the model of each client"),
        ({"kind": "communities"}, "communities groups clients by what each of them tells"),
        ({"kind": "fedex"}, "fedex compares what few clients measure"),
        ({"kind": "fedpop"}, "fedpop compares what few clients measure"),
        ({"kind": "dp_fedavg", "noise_multiplier": 1.0}, "dp_fedavg looks at the model of each client"),
        ({"kind": "fedavg", "selection": "oort"}, "selection.kind=oort chooses by what each client reports"),
    ],
)
def test_what_compares_clients_is_refused_before_anything_trains(
    strategy: dict[str, Any], reason: str, agreement: Path, tmp_path: Path
) -> None:
    federation, link = met(agreement, tmp_path / "out")
    heard = len(link.heard)
    with pytest.raises(StrategyError, match=reason) as refused:
        federation.train(strategy)
    assert "\n" not in str(refused.value)
    assert len(link.heard) == heard


def test_two_clients_are_too_few(agreement: Path, tmp_path: Path) -> None:
    federation, _ = met(agreement, tmp_path / "out", num_clients=2)
    with pytest.raises(StrategyError, match="at least 3 clients a round, got 2"):
        federation.train({"kind": "fedavg"})


def test_a_detection_is_refused_with_what_can_be_had(agreement: Path, tmp_path: Path) -> None:
    federation, link = met(agreement, tmp_path / "out")
    heard = len(link.heard)
    with pytest.raises(ConfigurationError, match=r"compares clients .* totals\(\) tells"):
        federation.detect()
    assert len(link.heard) == heard
    plain, _ = met(agreement, tmp_path / "plain", OwnerPolicy(), secure=False)
    with pytest.raises(ConfigurationError, match="needs secure=True"):
        plain.totals()


@pytest.mark.slow
def test_totals_are_those_of_all_rows(config: StudyConfig, agreement: Path, tmp_path: Path) -> None:
    federation, _ = met(agreement, tmp_path / "out", SUMS_ALONE.model_copy(update={"min_release": 1}))
    totals = federation.totals()
    rows = build_federation(config.federation, config.model)
    held = np.concatenate([rows.partition.client(client) for client in range(4)])
    features = rows.features[held].reshape(len(held), -1).astype(np.float64)
    assert (totals.num_clients, totals.num_rows) == (4, len(held))
    assert [*totals.class_counts.values()] == np.bincount(rows.labels[held], minlength=rows.num_classes).tolist()
    np.testing.assert_allclose(totals.feature_means, features.mean(axis=0), atol=1e-9)
    np.testing.assert_allclose(totals.feature_deviations, features.std(axis=0), atol=1e-6)
    assert (tmp_path / "out" / "totals.json").is_file()


@pytest.mark.slow
def test_clients_with_too_few_rows_give_no_totals(agreement: Path, tmp_path: Path) -> None:
    federation, _ = met(agreement, tmp_path / "out", SUMS_ALONE.model_copy(update={"min_release": 10_000}))
    with pytest.raises(TrialError, match="holds fewer rows than"):
        federation.totals()


def test_an_owner_of_sums_alone_answers_nothing_else(
    agreement: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation, link = met(agreement, tmp_path / "out", secure=False)
    with pytest.raises(TrialError):
        federation.train({"kind": "fedavg"})
    assert sum("allows masked sums alone" in record.message for record in caplog.records if record.args) >= 4
    introduced, *others = (message for message in link.heard if message.metadata.reply_to_message_id)
    assert introduced.has_content()
    assert {member.introduction.num_rows for member in federation._roster.members} == {0}
    assert all(message.has_error() for message in others[3:])


def test_the_document_names_the_strategies_that_work() -> None:
    cohort = Cohort(10, 10, 0.1, server_rows=50, server_labels=True)
    working = [
        kind for kind in STRATEGIES if kind != "custom" and beyond_sums(parse_strategy({"kind": kind}, cohort)) is None
    ]
    (line,) = [text for text in (DOCS / "privacy.md").read_text().splitlines() if text.startswith("| train | `fedavg`")]
    assert [name.strip("` ") for name in line.split("|")[2].split(",")] == working
