"""Laws of FedDF."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fedscout.engine.arrays import IntArray
from fedscout.engine.client.host import ClientHost
from fedscout.engine.client.updates import ServerModel
from fedscout.engine.errors import StrategyError
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.models.flat import new_model
from fedscout.engine.seeds import stream
from fedscout.engine.trials.trial import run_trial
from fedscout.experiments.config import load_config
from fedscout.experiments.studies.workflow import run_training, run_workflow
from fedscout.strategies import FedAvgSpec
from fedscout.strategies.aggregation.rules import Outputs
from fedscout.strategies.methods.server_rows import Distillation, FedDFSpec
from tests.engine.federations import QUERIES, dense, normalised, plain_model, uneven_federation, with_server_rows
from tests.kits.refusals import refused
from tests.strategies.by_hand import SIZES, result_of, spec_of
from tests.strategies.rounds import played

NUM_ROWS = 60
FEW = FedDFSpec(distillation_steps=24, distillation_rate=2e-3, distillation_batch=16)
Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class CountingModel(ServerModel):
    """Notes the rows of each gradient."""

    batches: list[Any]

    def gradient(self, vector: Any, loss: Callable[[Any], Any], rows: IntArray | None = None) -> Any:
        self.batches.append(None if rows is None else rows.tolist())
        return super().gradient(vector, loss, rows)


@pytest.fixture(scope="module")
def host() -> ClientHost:
    return ClientHost(with_server_rows(uneven_federation(sizes=SIZES)), QUERIES)


def context_of(model: Any = dense) -> CountingModel:
    context = ServerModel.of(with_server_rows(uneven_federation(model)), new_model(model, 1), stream(3, "server", 1))
    return CountingModel(**vars(context), batches=[])


def models_of(count: int = 3, model: Any = dense) -> Vectors:
    """Clients' models: one initial model, each moved by noise of its own."""
    generator, vector = np.random.default_rng(8), new_model(model, seed=4).vector.numpy()
    noise = generator.normal(scale=0.4, size=(count, len(vector)))
    return (vector + np.abs(noise) if model is normalised else vector + noise).astype(np.float32)


def mean_of(models: Vectors) -> Vectors:
    return models.astype(np.float64).mean(axis=0).astype(np.float32)


def distilled(context: Any, models: Vectors, **changes: Any) -> tuple[Vectors, float, float]:
    """Return the mean of models after distillation, and the divergences before and after."""
    settings = {"num_steps": 20, "learning_rate": 0.01, "batch_size": 16, "patience": 1000, **changes}
    student = mean_of(models)
    outputs = np.mean([Outputs().run(context, {"model": model})["outputs"] for model in models], axis=0)
    found = Distillation(**settings).run(context, {"student": student, "outputs": outputs})
    before, after = found["divergences"].tolist()
    return found["student"], before, after


def features() -> torch.Tensor:
    server = with_server_rows(uneven_federation()).server
    return torch.from_numpy(server.features).double()


def teacher_by_hand(models: Vectors) -> torch.Tensor:
    """Softmax of the mean logits, in float64."""
    logits = [plain_model(dense, vector).double().eval()(features()).detach() for vector in models]
    return torch.stack(logits).mean(dim=0).softmax(dim=1)


def divergence_by_hand(models: Vectors, vector: Vectors) -> float:
    """Mean over rows of Σ_c t_c (log t_c − log s_c), in float64."""
    teacher = teacher_by_hand(models)
    student = plain_model(dense, vector).double().eval()(features()).detach().softmax(dim=1)
    return float((teacher * (teacher.log() - student.log())).sum(dim=1).mean())


def test_divergences_are_those_computed_by_hand_and_distillation_lowers_them() -> None:
    models = models_of()
    student, before, after = distilled(context_of(), models)
    assert before == pytest.approx(divergence_by_hand(models, mean_of(models)), abs=1e-6)
    assert after == pytest.approx(divergence_by_hand(models, student), abs=1e-6)
    assert after < before / 2


@pytest.mark.parametrize("model", [dense, normalised])
def test_where_all_clients_are_equal_the_student_stays(model: Any) -> None:
    """The teacher is the student: nothing to gain, so not a step is made."""
    context, (vector, *_) = context_of(model), models_of(1, model)
    student, before, _ = distilled(context, np.stack([vector] * 3))
    np.testing.assert_array_equal(student, vector)
    assert abs(before) < 1e-6
    assert context.batches == []


def test_steps_are_adam_s_on_the_divergence_with_a_rate_that_falls_as_a_cosine() -> None:
    """By torch's own Adam and schedule in float64; a batch is all rows, so no draw matters."""
    models, num_steps = models_of(), 6
    student, _, _ = distilled(context_of(), models, num_steps=num_steps, batch_size=NUM_ROWS)
    mean = mean_of(models)
    module, teacher = plain_model(dense, mean).double().eval(), teacher_by_hand(models)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = (teacher * (teacher.log() - module(features()).log_softmax(dim=1))).sum(dim=1).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    by_hand = torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])
    np.testing.assert_allclose(student, by_hand, rtol=0, atol=1e-5)
    assert np.abs(student - mean).max() > 0.02


def test_each_pass_over_the_rows_has_an_order_of_its_own() -> None:
    context = context_of()
    distilled(context, models_of(), num_steps=8)
    orders = [[row for batch in context.batches[first : first + 4] for row in batch] for first in (0, 4)]
    assert [len(batch) for batch in context.batches] == [16, 16, 16, 12] * 2
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(NUM_ROWS))


def test_statistics_of_batch_normalisation_are_the_clients_mean() -> None:
    models = models_of(model=normalised)
    student, before, after = distilled(context_of(normalised), models)
    size = new_model(normalised, 0).layout.num_trainable
    mean = mean_of(models)
    np.testing.assert_array_equal(student[size:], mean[size:])
    assert after < before


def test_steps_that_gain_nothing_end_and_leave_the_mean() -> None:
    """Steps as long as the weights only harm; they are compared after each pass of four batches."""
    context, models = context_of(), models_of()
    student, before, after = distilled(context, models, learning_rate=30.0, num_steps=10_000, patience=10)
    np.testing.assert_array_equal(student, mean_of(models))
    assert after == before
    assert len(context.batches) == 12


def test_a_teacher_that_is_not_finite_teaches_nothing() -> None:
    context, models = context_of(), models_of()
    models[1] *= np.float32(1e30)
    student, before, _ = distilled(context, models)
    assert np.isnan(before)
    assert context.batches == []
    np.testing.assert_array_equal(student, mean_of(models))


def test_a_round_is_the_mean_distilled(host: ClientHost) -> None:
    """Of all eight clients: what is distilled in the first round is FedAvg's model, and so it is in every round."""
    spec = spec_of(FEW, num_rounds=3, num_sampled=8)
    grid = Kept(host, session=spec.session)
    taught, mean = run_trial(spec, grid).vector, result_of(host, FedAvgSpec(), num_rounds=1, num_sampled=8).vector
    np.testing.assert_allclose(grid.served[0][0]["student"], mean, rtol=0, atol=1e-7)
    np.testing.assert_array_equal(taught, grid.served[-1][1]["student"])
    assert [len(models) for models in grid.asked] == [8] * 3
    for (arrays, found), models in zip(grid.served, grid.asked, strict=True):
        teacher = torch.from_numpy(arrays["outputs"]).double().softmax(dim=1)
        np.testing.assert_allclose(teacher, teacher_by_hand(models), rtol=0, atol=1e-6)
        before, after = found["divergences"]
        assert after < before
        assert np.abs(found["student"] - arrays["student"]).max() > 1e-3


class Kept(LocalGrid):
    """Remembers the work that was done for the server: what was distilled, and which models were asked before."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.served: list[tuple[Any, Any]] = []
        self.asked: list[Any] = []

    def serve(self, work: Any, arrays: Any) -> Any:
        found = super().serve(work, arrays)
        self.served.append((arrays, found))
        return found

    def serve_each(self, work: Any, inputs: Any) -> Any:
        if work == Outputs():
            self.asked.append(np.stack([arrays["model"] for arrays in inputs]))
        return super().serve_each(work, inputs)


def test_clients_that_fail_or_are_absent_teach_nobody() -> None:
    """Seven clients, of which one has no rows and others miss rounds."""
    everyone = with_server_rows(uneven_federation())
    absent = replace(everyone, dropout=dict.fromkeys((0, 5), 0.5))
    spec = spec_of(FEW, num_rounds=4, num_sampled=7)
    for federation, expected in ((everyone, {6}), (absent, {4, 5, 6})):
        grid = Kept(ClientHost(federation, QUERIES), session=spec.session)
        result = run_trial(spec, grid)
        assert (result.status, result.skipped_rounds) == ("completed", {})
        counts = [len(models) for models in grid.asked]
        assert len(counts) == 4
        assert {*counts} <= expected
        assert sum(counts) == 4 * 7 - len(result.dropped_clients)


def test_a_server_without_rows_is_refused_before_anything_trains(tmp_path: Path) -> None:
    with refused(StrategyError, key="feddf", given="none", names="federation.server_rows"):
        FedDFSpec().build(Cohort(8, 5, 0.1))
    for allowed in (1, None):
        FedDFSpec().build(Cohort(8, 5, 0.1, server_rows=allowed))
    for run, setting in ((run_training, "strategy.kind=feddf"), (run_workflow, "search.strategies=[fedavg,feddf]")):
        with refused(StrategyError, key="feddf", names="federation.server_rows"):
            run(load_config([setting]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_grid_without_hosts_is_refused() -> None:
    built = FEW.build(Cohort(2, 2, 0.1, server_rows=9))
    with refused(StrategyError, key="FedDF", given="NodeList"):
        played(built, np.ones(4), lambda sent: [sent, sent + 1], 1)


@pytest.mark.slow
def test_who_drives_rounds_loads_no_torch() -> None:
    program = (
        "import sys\n"
        "from fedscout.engine.trials.ray_runner import start_trial\n"
        "from fedscout.engine.messages.calls import Cohort\n"
        "from fedscout.strategies.methods.server_rows import FedBiOSpec, FedDFSpec\n"
        "for spec in (FedDFSpec(), FedBiOSpec()):\n"
        "    spec.build(Cohort(8, 5, 0.1, server_rows=9, server_labels=True))\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
