"""Detectors that learn nothing do not read the features they are fitted on."""

from pathlib import Path

import pytest

from oodles.detectors import DICE, MSP
from oodles.errors import FileError
from oodles.features import Features


def test_a_detector_with_nothing_to_learn_reads_nothing(features: Features, tmp_path: Path) -> None:
    features.save(tmp_path / "s")
    shard = tmp_path / "s" / "shard-00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    MSP().fit(Features.load(tmp_path / "s"))
    with pytest.raises(FileError, match="altered"):
        DICE().fit(Features.load(tmp_path / "s"))
