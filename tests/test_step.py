"""``Step.move`` in a fraction of an image's values: those with the smallest gradients, image by image."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import adascale as slow

from oodles.steps import Step


def step(share, epsilon=0.5, std=()):
    return Step("a step", lambda columns: columns["logits"].sum(dim=1), epsilon, share=share, std=std)


gradients = st.integers(-3, 3) | st.sampled_from([0, 0.125, -0.125, 100])


@settings(max_examples=60, deadline=None)
@given(
    gradient=st.lists(st.lists(gradients, min_size=12, max_size=12), min_size=1, max_size=4),
    share=st.sampled_from([0.001, 0.05, 0.125, 0.25, 0.5, 0.875, 0.999]) | st.floats(0.001, 0.999),
    std=st.sampled_from([(), (0.25, 0.5, 2.0)]),
)
def test_a_partial_step_moves_the_values_with_the_smallest_gradients(gradient, share, std):
    gradient = torch.tensor(gradient, dtype=torch.float64).view(-1, 3, 2, 2)
    images = torch.arange(gradient.numel(), dtype=torch.float64).view_as(gradient)
    got = step(share, std=std).move(images, gradient)
    want = [slow.step(*pair, 0.5, share, std) for pair in zip(images.numpy(), gradient.numpy(), strict=True)]
    np.testing.assert_array_equal(got, np.array(want))


def test_values_with_equal_gradients_move_together():
    gradient = torch.tensor([[1.0, -1.0, 1.0, 2.0], [2.0, 2.0, -2.0, -2.0]])
    assert step(0.25).move(torch.zeros(2, 4), gradient).tolist() == [[-0.5, 0.5, -0.5, 0], [-0.5, -0.5, 0.5, 0.5]]


def test_a_value_without_gradient_does_not_move_but_counts_among_the_smallest():
    gradient = torch.tensor([[0.0, 0.0, 1.0, -2.0], [0.0, 0.0, 0.0, 0.0]])
    images = torch.ones(2, 4)
    assert torch.equal(step(0.5).move(images, gradient), images)
    assert step(0.75).move(images, gradient).tolist() == [[1, 1, 0.5, 1], [1, 1, 1, 1]]


def test_a_share_of_one_is_the_full_step_and_the_memory_layout_does_not_matter():
    generator = torch.Generator().manual_seed(0)
    gradient, images = torch.randn(2, 4, 3, 5, 5, generator=generator).unbind()
    whole = Step("whole", lambda columns: columns["logits"], 0.5)
    assert whole.share == 1
    assert torch.equal(whole.move(images, gradient), images - 0.5 * gradient.sign())
    assert torch.equal(step(1.0).move(images, gradient), whole.move(images, gradient))
    last = {"memory_format": torch.channels_last}
    got = step(0.1).move(images.contiguous(**last), gradient.contiguous(**last))
    assert torch.equal(got, step(0.1).move(images, gradient))


@settings(max_examples=60, deadline=None)
@given(
    gradient=st.lists(st.lists(gradients | st.floats(-1e3, 1e3), min_size=12, max_size=12), min_size=1, max_size=4),
    std=st.sampled_from([(), (0.25, 0.5, 2.0)]),
)
def test_a_share_of_zero_moves_the_one_value_with_the_largest_gradient(gradient, std):
    gradient = torch.tensor(gradient, dtype=torch.float64).view(-1, 3, 2, 2)
    images = torch.arange(gradient.numel(), dtype=torch.float64).view_as(gradient)
    full, got = step(1.0, std=std).move(images, gradient), step(0.0, std=std).move(images, gradient)
    for image, after, whole, slope in zip(images, got, full, gradient, strict=True):
        moved = after != image
        if (slope == 0).all():
            assert not moved.any()
            continue
        assert int(moved.sum()) == 1, "also if several gradients are equally large"
        assert float(slope[moved].abs()) == float(slope.abs().max())
        assert torch.equal(after[moved], whole[moved])


def test_one_value_moves_in_each_image_whatever_the_others_and_the_memory_layout():
    generator = torch.Generator().manual_seed(0)
    gradient, images = torch.randn(2, 4, 3, 5, 5, generator=generator).unbind()
    after = step(0.0).move(images, gradient)
    for number in range(4):
        alone = step(0.0).move(images[number : number + 1], gradient[number : number + 1])
        assert torch.equal(alone[0], after[number])
    last = {"memory_format": torch.channels_last}
    assert torch.equal(step(0.0).move(images.contiguous(**last), gradient.contiguous(**last)), after)
    nan = torch.full((1, 4), float("nan"))
    assert step(0.0).move(torch.ones(2, 4), torch.cat([nan, torch.tensor([[1.0, -3, 2, 0]])])).tolist() == [
        [1, 1, 1, 1],
        [1, 1.5, 1, 1],
    ]


def test_a_nan_gradient_is_never_among_the_smallest():
    nan = float("nan")
    gradient = torch.tensor([[1.0, nan, 2.0, 3.0], [nan, nan, nan, nan], [1.0, 2.0, 3.0, 4.0]])
    after = step(0.5).move(torch.zeros(3, 4), gradient)
    assert after.tolist() == [[-0.5, 0, -0.5, 0], [0, 0, 0, 0], [-0.5, -0.5, 0, 0]]
