"""What detectors compare in place of a row, by the user's choice."""

from __future__ import annotations

from fedscout.engine.data.federation import EmbeddingSource
from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.model.parameter_layout import ModelFactory
from fedscout.experiments.federations.models.imported_model import is_import_path
from fedscout.experiments.federations.models.model_request import ModelRequest

EMBEDDED_KINDS = ("image", "tokens")
"""Rows whose single values say little."""


def embedding_source(choice: str, request: ModelRequest, model: ModelFactory) -> EmbeddingSource | None:
    """Return the network whose view of rows detectors compare, or None to compare the features.

    Args:
        choice: `auto`, `features`, or `package.module:factory` of a network that turns rows into vectors.
        request: What the task's model was built for.
        model: The task's model.

    Raises:
        ConfigurationError: If the user's network can't be used, or there is no such choice.
    """
    if choice == "features" or (choice == "auto" and request.data_kind not in EMBEDDED_KINDS):
        return None
    if choice == "auto":
        return EmbeddingSource(model)
    if not is_import_path(choice):
        raise ConfigurationError(
            Fault("federation.embedding", "be auto, features or package.module:factory", repr(choice))
        )
    from fedscout.experiments.federations.models.own_model import own_extractor

    return EmbeddingSource(own_extractor(choice, request), penultimate=False)
