"""Numbers that a page takes from another page are the numbers there."""

from pathlib import Path

from oodles.detectors.registry import BUILT_IN
from oodles.models import read_card
from studies import choice, small_network

ROOT = Path(__file__).parents[1]


def test_costs_and_results_of_detectors_are_those_that_were_measured() -> None:
    page = (ROOT / "docs" / "choose-a-detector.md").read_text()
    assert page == choice.page(), "run make study NAME=choice"


def test_the_small_network_is_described_as_on_its_card() -> None:
    page = (ROOT / "docs" / "cifar10-small.md").read_text()
    assert small_network.describe(read_card(small_network.NAME)) in page, "run make study NAME=small_network"


def test_every_detector_has_a_formula_and_a_reference() -> None:
    mathematics = (ROOT / "docs" / "mathematics.md").read_text()
    reference = (ROOT / "docs" / "api" / "detectors.md").read_text()
    assert [entry.name for entry in BUILT_IN if f"`{entry.name}`" not in mathematics] == ["react_scale_dice"]
    assert [entry.kind.__name__ for entry in BUILT_IN if f".{entry.kind.__name__}\n" not in reference] == []
