"""Texts for guards of text models: a tokenizer file of Hugging Face, run by the package tokenizers."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from oodles.deploy.artefact import Arrays
from oodles.deploy.exported import ExportedGuard
from oodles.errors import ArgumentError, FileError
from oodles.extras import needed_by
from oodles.records.files import read_regular
from oodles.records.text import one_line

MAX_BYTES = 1 << 26  # of a tokenizer file
MAX_TOKENS = 512  # of a text; what is longer is cut
COLUMNS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
"""Inputs of text models, and what the tokenizers package calls them."""


class TextTokenizer:
    """Texts as the inputs of one guard, padded to the longest of them and cut at 512 tokens."""

    def __init__(self, path: Path, guard: ExportedGuard) -> None:
        self._inputs = {each["name"]: np.dtype(each["dtype"]) for each in guard.record["inputs"]}
        unknown = next((name for name in self._inputs if name not in COLUMNS), None)
        if unknown is not None:
            raise ArgumentError(
                f"{guard.path} takes {unknown}, which a tokenizer does not give; it gives {', '.join(COLUMNS)}"
            )
        with needed_by("a tokenizer"):
            from tokenizers import Tokenizer
        content = read_regular(path, MAX_BYTES, links=True, remedy="give a tokenizer.json")
        try:
            self._tokenizer = Tokenizer.from_str(content.decode())
        except Exception as error:  # of the tokenizers package, which raises plain ones
            raise FileError(f"{path} is not a tokenizer.json ({one_line(error)})") from None
        if self._tokenizer.padding is None:
            self._tokenizer.enable_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)

    def __call__(self, texts: Sequence[str]) -> Arrays:
        """One row per text."""
        encoded = self._tokenizer.encode_batch(list(texts))
        return {
            name: np.array([getattr(each, COLUMNS[name]) for each in encoded], kind)
            for name, kind in self._inputs.items()
        }
