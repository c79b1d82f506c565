import re

from oodles.detectors import default_detector
from oodles.detectors.registry import entries


def test_every_detector_is_listed(succeeded):
    out, _ = succeeded("detectors")
    for name in entries():
        assert re.search(rf"^  {name} ", out, re.MULTILINE), name
    groups = re.findall(r"^(\w.*):$", out, re.MULTILINE)
    assert groups == ["stages, joined by +", "scores, last in a chain", "other detectors", "for example"]
    stages, scores, others = (out.index(group) for group in groups[:3])
    assert stages < out.index("\n  dice ") < scores < out.index("\n  energy ") < others < out.index("\n  knn ")
    assert "\n  dice(0.9)+energy\n" in out
    count, default = re.search(r"^(\d+) names; if none is given, (\S+) is used$", out, re.MULTILINE).groups()
    assert int(count) == len(entries()) >= 40
    assert default == default_detector().spec
