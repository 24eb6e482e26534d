"""Whether a model's layers compute in the precision that is asked for: tried before anything starts."""

from __future__ import annotations

from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, Fault


def check_precision(training: LocalTraining, federation: Federation) -> None:
    """Refuse layers that fail in bfloat16, as a module of one's own may.

    Args:
        training: Of the clients.
        federation: With its rows.

    Raises:
        ConfigurationError: With what the model said.
    """
    if not training.is_narrow:
        return
    import torch

    from fedscout.engine.model.flat_model import PROBE_ROWS, new_model

    model, rows = new_model(federation.model, seed=0), torch.zeros(PROBE_ROWS, *federation.features.shape[1:])
    try:
        with torch.random.fork_rng(devices=[]):
            model.module.train()
            model.narrow_outputs(rows).sum().backward()  # type: ignore[no-untyped-call]
    except Exception as error:  # a user's module may raise anything
        raise ConfigurationError(
            Fault(
                "training.precision",
                (
                    f"be float32 for this model, whose layers fail in {training.precision} with "
                    f"{type(error).__name__}: {' '.join(str(error).split())}"
                ),
            )
        ) from error
