import numpy as np
import pytest
import torch

from oodles.errors import ArgumentError
from oodles.outliers import KINDS, stand_ins


def pictures(count: int = 6, channels: int = 3, height: int = 32, width: int = 32) -> torch.Tensor:
    return torch.rand(count, channels, height, width, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 31, 17), (1, 8, 8)])
def test_stand_ins_are_pictures_of_the_same_shape_and_repeat(kind: str, shape: tuple[int, int, int]) -> None:
    images = pictures(6, *shape)
    before = images.clone()
    made = stand_ins(images, kind, seed=3)
    assert made.shape == images.shape
    assert float(made.min()) >= 0
    assert float(made.max()) <= 1
    assert torch.equal(made, stand_ins(images, kind, seed=3))
    assert torch.equal(images, before), "the images themselves are left alone"
    if kind != "ghosted" or shape[0] > 1:
        assert not torch.equal(made, images)


def test_means_are_of_two_classes() -> None:
    images = torch.zeros(8, 3, 4, 4)
    images[4:] = 1
    labels = torch.arange(8) // 4
    assert (stand_ins(images, "arithmetic_mean", labels=labels) == 0.5).all()
    assert (stand_ins(images, "geometric_mean", labels=labels) == 0).all()
    alike = stand_ins(images[:4], "arithmetic_mean", labels=labels[:4])
    assert (alike == 0).all(), "with one class alone any other image has to do"


def test_a_mean_is_never_the_image_itself() -> None:
    images = torch.eye(9)[:, None, :, None].expand(-1, 3, -1, 9)
    made = stand_ins(images, "arithmetic_mean")
    assert float(made.amax()) == 0.5


def test_the_jigsaw_is_the_published_permutation() -> None:
    image = np.arange(16.0).reshape(4, 4) / 16
    made = stand_ins(torch.tensor(image)[None, None].repeat(2, 3, 1, 1), "jigsaw")[0, 0].numpy()
    # above: top left with rows swapped, bottom left; below: bottom right, top right with columns swapped
    want = np.block([[image[[1, 0], :2], image[2:, :2]], [image[2:, 2:], image[:2, [3, 2]]]])
    np.testing.assert_allclose(made, want)


def test_inverted_and_ghosted_channels() -> None:
    images = pictures(2)
    turned = stand_ins(images, "inverted")
    assert torch.equal(turned[:, 0], images[:, 0])
    assert torch.equal(turned[:, 1:], 1 - images[:, 1:])
    ghost = stand_ins(images, "ghosted")
    assert torch.equal(ghost[:, 0], images[:, 1].flip(2))
    assert torch.equal(ghost[:, 1], images[:, 2])
    assert torch.equal(ghost[:, 2], images[:, 0])


def test_speckle_leaves_black_black() -> None:
    images = torch.zeros(2, 3, 8, 8)
    images[:, :, 4:] = 0.5
    made = stand_ins(images, "speckle")
    assert (made[:, :, :4] == 0).all()
    assert float(made[:, :, 4:].std()) > 0.1


def test_what_cannot_be_made() -> None:
    with pytest.raises(ArgumentError, match="is no kind of stand-in"):
        stand_ins(pictures(), "blur")
    with pytest.raises(ArgumentError, match="at least two images"):
        stand_ins(pictures(1), "jigsaw")
