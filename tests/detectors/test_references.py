"""Every formula gives the scores of its slow, obvious twin."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from reference import detectors as slow
from reference import gradient as slow_gradient
from support.detector_data import Pair, assert_matches, train_and_test

REFERENCES: dict[str, Callable[[slow.Rows], np.ndarray]] = {
    "gen": slow.gen,
    "gen(gamma=0.5, top=3)": lambda rows: slow.gen(rows, 0.5, 3),
    "doctor": slow.doctor,
    "ash_p(70)": lambda rows: slow.ash_p(rows, 70),
    "ash_b(70)": lambda rows: slow.ash_b(rows, 70),
    "ash_s(70)": lambda rows: slow.ash_s(rows, 70),
    "scale(60)": lambda rows: slow.scale(rows, 60),
    "lts(80)": lambda rows: slow.lts(rows, 80),
    "vra": lambda rows: slow.vra(rows, 60, 95),
    "vra(40, 90)": lambda rows: slow.vra(rows, 40, 90),
    "vra(40, 90, per='all')": lambda rows: slow.vra(rows, 40, 90, per="all"),
    "kl_matching": slow.kl_matching,
    "temp_scale": slow.temp_scale,
    "openmax(tail=8, top=3)": lambda rows: slow.openmax(rows, 8, 3),
    "openmax": lambda rows: slow.openmax(rows, 20, 10),
    "gradnorm": lambda rows: slow.by_autograd(slow_gradient.gradnorm, rows),
    "gradnorm(2)": lambda rows: slow.by_autograd(slow_gradient.gradnorm, rows, temperature=2),
    "grad_uncertainty": lambda rows: slow.by_autograd(slow_gradient.grad_uncertainty, rows),
    "exgrad": lambda rows: slow.by_autograd(slow_gradient.exgrad, rows),
    "rmds": slow.rmds,
    "mahalanobis_pp": slow.mahalanobis_pp,
    "gaussian_mixture": slow.gaussian_mixture,
    "ddu": slow.ddu,
    "knn(5)": lambda rows: slow.knn(rows, 5),
    "nnguide(5)": lambda rows: slow.nnguide(rows, 5),
    "she": slow.she,
    "residual(6)": lambda rows: slow.residual(rows, 6),
    "vim(6)": lambda rows: slow.vim(rows, 6),
    "neco(4)": lambda rows: slow.neco(rows, 4),
    "pnml": slow.pnml,
    "fdbd": slow.fdbd,
    "nci": slow.nci,
    "cadref": slow.cadref,
}


@pytest.mark.parametrize("text", REFERENCES)
@settings(max_examples=8, deadline=None)
@given(pair=train_and_test())
def test_scores_match_the_reference(text: str, pair: Pair) -> None:
    assert_matches(text, REFERENCES[text], pair)
