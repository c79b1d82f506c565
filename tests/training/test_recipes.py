"""Recipes: schedules of the learning rate, and what the optimiser is given."""

import math

import numpy as np
import pytest
from support.networks import one_thread  # noqa: F401
from support.training_runs import QUIET
from support.training_worker import coloured
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from oodles.errors import ArgumentError
from oodles.training import RECIPES, Recipe, train


def test_the_optimiser_is_given_the_papers_recipe(tmp_path):
    steps = []

    def record(optimiser, *_):
        (group,) = optimiser.param_groups
        steps.append([group[name] for name in ("lr", "momentum", "weight_decay", "nesterov")])

    hook = register_optimizer_step_pre_hook(record)
    try:
        metrics = train(nn.Sequential(nn.Flatten(), nn.Linear(192, 3)), coloured(128), out=tmp_path, **QUIET)
    finally:
        hook.remove()
    assert len(metrics) == 100
    assert len(steps) == 200, "two batches of 64 per epoch"
    rates = [0.1] * 100 + [0.01] * 50 + [0.001] * 30 + [0.0001] * 20
    np.testing.assert_allclose([lr for lr, *_ in steps], rates, rtol=1e-12)
    assert {tuple(rest) for _, *rest in steps} == {(0.9, 1e-4, False)}


@pytest.mark.parametrize("batches", [1, 3, 7, 131, 782])
def test_the_learning_rate_drops_at_the_first_batch_of_an_epoch(batches):
    paper = RECIPES["paper"]
    assert (paper.epochs, paper.batch_size, paper.learning_rate) == (100, 64, 0.1)
    for epoch, before, after in ((50, 0.1, 0.01), (75, 0.01, 0.001), (90, 0.001, 0.0001)):
        first = epoch * batches
        assert paper.learning_rate_at((first - 1) / (100 * batches)) == pytest.approx(before)
        assert paper.learning_rate_at(first / (100 * batches)) == pytest.approx(after)


def test_the_recipe_of_generalized_odin():
    godin = RECIPES["godin"]
    assert (godin.epochs, godin.batch_size, godin.momentum, godin.weight_decay) == (200, 64, 0.9, 1e-4)
    rates = [godin.learning_rate_at(epoch / 200) for epoch in (0, 99, 100, 149, 150, 199)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_one_cycle_rises_for_a_fifth_and_falls_to_zero():
    recipe = RECIPES["one-cycle"]
    assert [recipe.learning_rate_at(progress) for progress in (0, 0.1, 0.2, 0.6, 1)] == pytest.approx(
        [0, 0.1, 0.2, 0.1, 0]
    )
    rates = [recipe.learning_rate_at(step / 1000) for step in range(1001)]
    assert np.all(np.diff(rates[:201]) > 0)
    assert np.all(np.diff(rates[200:]) < 0)


@pytest.mark.parametrize(
    "values",
    [
        {"epochs": 0},
        {"epochs": -1},
        {"epochs": 10**9},
        {"batch_size": 1},
        {"learning_rate": 0.0},
        {"learning_rate": -0.1},
        {"learning_rate": math.nan},
        {"drops": (0.5, 1.0)},
        {"drops": (0.0,)},
        {"drops": (50, 75)},
        {"drops": (math.nan,)},
        {"momentum": -0.1},
        {"weight_decay": -1e-4},
        {"momentum": 0.0, "nesterov": True},
    ],
    ids=str,
)
def test_invalid_recipes_are_refused(values):
    with pytest.raises(ArgumentError, match=next(iter(values))):
        Recipe(**values)
