"""From texts to a network's tokens, by the tokenizer that goes with it: the `tokenizer.json` of Hugging Face."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedscout.engine.errors import DataError, first_line
from fedscout.experiments.extras import extra_module

MOST_TOKENS = 512
"""Of a text that a transformer reads, where the file does not say: so many places have BERT and its descendants."""


class Tokens:
    """Cuts texts.

    Args:
        path: The file.

    Raises:
        ConfigurationError: If the library is not installed.
        DataError: If the file can't be read.
    """

    def __init__(self, path: Path) -> None:
        tokenizers = extra_module("tokenizers", "embeddings", "--tokenizer needs the library tokenizers")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing more special
            raise DataError(f"{path} can't be read as a tokenizer: {first_line(error)}") from None
        if self._tokenizer.truncation is None:
            self._tokenizer.enable_truncation(MOST_TOKENS)
        self._tokenizer.enable_padding(**(self._tokenizer.padding or {}))

    def padded(self, texts: Sequence[str]) -> dict[str, list[list[int]]]:
        """Return what a transformer takes of texts, by the usual names of its inputs, each as long as the longest."""
        found: list[Any] = self._tokenizer.encode_batch(list(texts))
        return {
            "input_ids": [one.ids for one in found],
            "attention_mask": [one.attention_mask for one in found],
            "token_type_ids": [one.type_ids for one in found],
        }
