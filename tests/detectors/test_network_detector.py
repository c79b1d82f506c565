"""What detectors need of a network: layers and input steps, each once, and whether anything is left to tune."""

import pytest

from oodles.detectors import DICE, GODIN, KNN, ODIN, Detector, Energy, Mahalanobis, RankEnsemble, parse
from oodles.detectors.network_detector import is_tuned, layers_of, needs_network, steps_of


def test_equal_numbers_are_one_step_however_they_are_written() -> None:
    written = [parse("odin(1000, 0.004)"), ODIN(epsilon=0.004), ODIN(temperature=1000, epsilon=0.004)]
    assert len(steps_of(written)) == 1
    assert len(steps_of([ODIN(epsilon=0.1, std=(1, 1, 1)), ODIN(epsilon=0.1, std=(1.0, 1.0, 1.0))])) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ODIN(epsilon=0.004), ODIN(epsilon=0.0040001)),
        (ODIN(epsilon=0.1), ODIN(epsilon=0.1, std=(0.5, 0.5, 0.5))),
        (ODIN(epsilon=0.1), ODIN(epsilon=0.1, temperature=999.0)),
        (GODIN(epsilon=0.1), GODIN(epsilon=0.1, layer="head.cosine")),
        (GODIN(epsilon=0.1), ODIN(epsilon=0.1)),
    ],
    ids=str,
)
def test_steps_that_differ_in_any_setting_are_distinct(one: Detector, other: Detector) -> None:
    assert len(steps_of([one, other])) == 2


def test_layers_are_listed_once_each_in_order() -> None:
    detectors = [Mahalanobis(layers=["second", "first"]), GODIN(), ODIN(), Energy(), Mahalanobis(layers=["first"])]
    assert layers_of(detectors) == ("second", "first", "fc.cosine")
    assert layers_of([DICE(), KNN()]) == ()
    assert steps_of([DICE(), KNN(), ODIN(epsilon=0.0)]) == ()


@pytest.mark.parametrize(
    ("detector", "needs", "tuned"),
    [
        (DICE(), False, True),
        (KNN(), False, True),
        (Mahalanobis(), False, True),
        (Mahalanobis(epsilon=None), True, False),
        (Mahalanobis(layers=["a"]), True, False),
        (ODIN(epsilon=0.0), False, True),
        (ODIN(epsilon=0.1), True, True),
        (ODIN(), True, False),
        (GODIN(epsilon=0.0), True, True),
        (parse("adascale"), True, False),
        (RankEnsemble(detectors=["dice", "knn"]), False, True),
        (RankEnsemble(detectors=["dice", "odin"]), True, False),
    ],
    ids=str,
)
def test_what_needs_a_network_and_what_is_tuned(detector: Detector, needs: bool, tuned: bool) -> None:
    assert needs_network(detector) == needs
    assert is_tuned(detector) == tuned
