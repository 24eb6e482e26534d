"""A rival of comparing models with each other: each client's model is scored on labelled rows of the server.

The source of the published outlier detector names this alternative and rejects it. Rounds and repetitions are that
detector's (`fedscout.detectors.outliers.outliers`); in the place of a model's distance from the others stands its mean
cross-entropy on the server's rows. Two rules decide on it, those that decide on distances:

- **votes**: the 90th percentile in 4 of 5 repetitions;
- **exchanged**: models trained on disjoint parts of the rows, exchanged between clients
  (`fedscout.detectors.outliers.exchanged_models`), at a whole detector's rate, as there are no tests of labels beside,
  and whatever the effect, as losses of models that have hardly begun are nearly equal.

It takes what a server of federated learning rarely has: labelled rows like the clients'. Honest clients of skewed
labels or features train unlike models here, too; unlike the calibrated rule, this one is asked all the same, as its
point would be that it needs nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

import numpy as np

from fedscout.detectors import CalibratedFinding, Finding, HeterogeneityReport
from fedscout.detectors.conversation import hold
from fedscout.detectors.detection_config import DetectionConfig
from fedscout.detectors.outliers.calibrated_outliers import decide_outliers_calibrated
from fedscout.detectors.outliers.exchanged_models import model_test, row_parts
from fedscout.detectors.outliers.outliers import MIN_CLIENTS, Comparison, decide_outliers, train_and_compare
from fedscout.detectors.statistics.heterogeneity_metrics import Values
from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.server_work import Arrays, ServerContext, ServerWork
from fedscout.engine.messages.message_contents import TrainAnswers
from fedscout.engine.messages.session import Session
from fedscout.engine.trials.trial_runner import OpensGrids
from fedscout.experiments.config.study_config import StudyConfig

SHARED_ROWS = 200
SETTINGS = (f"federation.server_rows={SHARED_ROWS}", "federation.server_labels=true")


@dataclass(frozen=True)
class SharedLosses(ServerWork):
    """Scores models on the server's labelled rows: of `models`, `(clients, params)`, it returns `losses`."""

    def run(self, context: ServerContext, arrays: Arrays) -> Arrays:
        """Return the mean cross-entropy of each model."""
        import torch

        models = torch.from_numpy(np.array(arrays["models"]))
        cross_entropy = torch.nn.functional.cross_entropy
        losses = [cross_entropy(context.outputs(model), context.labels).item() for model in models]  # type: ignore[arg-type]
        return {"losses": np.array(losses)}


def shared_set_findings(
    runner: OpensGrids, config: StudyConfig, report: HeterogeneityReport
) -> tuple[Finding, CalibratedFinding]:
    """Train, score and decide by either rule.

    Args:
        runner: Where the clients are; its server holds labelled rows.
        config: Of the federation and its detection.
        report: Of that detection: who takes part, and with how many rows.
    """
    training, settings = config.training.local(), config.detection
    grid = runner.grid(Session(seed=config.seed, training=training, test_fraction=config.training.test_fraction))

    def losses_of(models: FloatArray) -> Values:
        return np.asarray(grid.serve(SharedLosses(), {"models": models})["losses"])

    parts = row_parts([client.num_rows for client in report.clients], config.seed)
    compared = hold(
        grid,
        train_and_compare(
            [client.client for client in report.clients],
            grid.initial_vectors,
            training,
            settings,
            config.seed,
            parts,
            by_loss(losses_of),
        ),
    )
    votes = compared[: settings.outlier_repetitions]
    repetitions, exchanged = (
        [comparison for comparison in some if comparison is not None]
        for some in (votes, compared[settings.outlier_repetitions :])
    )
    test = model_test(repetitions, exchanged, settings.detector_rate)
    any_effect = settings.model_copy(update={"distance_effect": 0.0})
    return decide_outliers(votes, settings), decide_outliers_calibrated((), test, None, any_effect)


def by_loss(
    losses_of: Callable[[FloatArray], Values],
) -> Callable[[TrainAnswers, np.random.Generator, DetectionConfig], Comparison | None]:
    """Return what compares the models of a repetition by their losses in the place of distances.

    Args:
        losses_of: From models, `(clients, params)`, to their losses, `(clients,)`; asked by one thread at a time.
    """
    one_at_a_time = Lock()

    def compare(answers: TrainAnswers, _: np.random.Generator, __: DetectionConfig) -> Comparison | None:
        with one_at_a_time:
            losses = losses_of(answers.vectors)
        finite = np.isfinite(losses)
        if finite.sum() < MIN_CLIENTS:
            return None
        pairs = list(zip(answers.clients, losses.tolist(), finite.tolist(), strict=True))
        return Comparison(
            distances={client: loss for client, loss, usable in pairs if usable},
            from_average={},
            diverged=tuple(client for client, _, usable in pairs if not usable),
            average=answers.vectors[finite].mean(axis=0),
        )

    return compare
