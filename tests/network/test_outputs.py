"""Where the logits are in what a model returns, and how it is refused if they are nowhere."""

from types import SimpleNamespace

import pytest
import torch
from support import networks
from support.networks import CLASSES, one_thread, pictures, seeded  # noqa: F401

from oodles.errors import HeadError
from oodles.network.extraction import extract
from oodles.network.outputs import logits_of, output_items

LOGITS, HIDDEN = torch.randn(4, CLASSES), torch.randn(4, 8)


@pytest.mark.parametrize(
    "output",
    [
        pytest.param(LOGITS, id="a tensor"),
        pytest.param(LOGITS[:, :, None, None], id="a 1x1 map"),
        pytest.param(SimpleNamespace(loss=None, logits=LOGITS, hidden=HIDDEN), id="an object with logits"),
        pytest.param({"hidden": HIDDEN, "logits": LOGITS}, id="a dict with logits"),
        pytest.param({"out": LOGITS}, id="a dict with one tensor"),
        pytest.param((LOGITS, torch.tensor(0.5)), id="logits and a loss"),
        pytest.param((LOGITS, LOGITS.argmax(dim=1)), id="logits and labels"),
        pytest.param((LOGITS, HIDDEN[:, :, None, None].expand(-1, -1, 2, 2)), id="logits and maps"),
        pytest.param([None, "cat", LOGITS], id="among other things"),
    ],
)
def test_the_only_tensor_with_the_shape_of_logits_is_taken(output):
    assert torch.equal(logits_of(output), LOGITS)


@pytest.mark.parametrize("output", [(LOGITS, HIDDEN), [HIDDEN, LOGITS], {"a": LOGITS, "b": HIDDEN}])
def test_several_tensors_with_the_shape_of_logits_are_never_guessed_between(output):
    with pytest.raises(HeadError, match=r"2 tensors \(4, .\) and \(4, .\) that could be its logits"):
        logits_of(output)
    for place, tensor in output_items(output).items():
        assert torch.equal(logits_of(output, place), tensor)


class Returns(networks.ConvAfterPool):
    """What ``make`` returns, given the logits of the pooled map and of every place in the map."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, images):
        return self.make(super().forward(images), self.fc(self.body(images)))


@pytest.mark.parametrize("head", [None, False])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda logits, maps: None, "a NoneType without logits"),
        (lambda logits, maps: {}, "a dict without logits"),
        (lambda logits, maps: [], "a list without logits"),
        (lambda logits, maps: "cat", "a str without logits"),
        (lambda logits, maps: ["cat", "dog"], "a list without logits"),
        (lambda logits, maps: logits.argmax(dim=1), r"int64 \(4,\), not floating-point numbers"),
        (lambda logits, maps: logits[:, 0], r"float32 \(4,\), one number per input: if it is a logit, .*\[:, None\]"),
        (lambda logits, maps: maps.flatten(2), r"float32 \(4, 5, 9\), one prediction per token: .*or their mean"),
        (lambda logits, maps: maps, r"float32 \(4, 5, 3, 3\), one prediction per pixel, as in segmentation: .*mean\("),
        (lambda logits, maps: {"out": maps, "aux": maps}, r"float32 \(4, 5, 3, 3\), one prediction per pixel, as"),
        (lambda logits, maps: SimpleNamespace(logits=maps), r"float32 \(4, 5, 3, 3\), one prediction per pixel"),
    ],
)
def test_every_other_output_is_refused_by_its_kind_with_the_remedy(make, message, head):
    with pytest.raises(HeadError, match=rf"the model returned {message}.*; return logits of shape \(rows, classes\)"):
        extract(seeded(lambda: Returns(make)), [pictures(4)], head=head)


def test_a_model_that_gives_another_number_of_rows_is_refused():
    with pytest.raises(HeadError, match="Returns gave 8 rows for 4 inputs"):
        extract(seeded(lambda: Returns(lambda logits, maps: logits.repeat(2, 1))), [pictures(4)], head=False)
