"""Finding the last linear layer: every kind of head that is one, and every kind that is not."""

import copy

import pytest
import torch
from support import networks
from support.networks import CLASSES, WIDTH, batched, one_thread, pictures, seeded, spread  # noqa: F401
from torch import nn
from torch.nn import functional as F

from oodles.data.inputs import Inputs
from oodles.errors import ArgumentError, HeadError
from oodles.features import Head
from oodles.network.candidates import LocatedHead
from oodles.network.extraction import extract
from oodles.network.head import locate_head
from oodles.network.outputs import logits_of
from oodles.network.taps import eval_mode, unwrap

ROWS, BATCH = 20, 7


def by_hand(model, images):
    """Embedding and output of the model itself, in eval mode."""
    model = copy.deepcopy(model).eval()
    with torch.no_grad():
        return model.hidden(images), logits_of(model(images), 0)


def located(model):
    with eval_mode(model):
        return locate_head(model, Inputs((pictures(6),)), None)


def plain(name):
    return lambda model: (model.get_submodule(name).weight.flatten(1), model.get_submodule(name).bias)


def normalised(model):
    scale = model.norm.weight / (model.norm.running_var + model.norm.eps).sqrt()
    return model.fc.weight * scale[:, None], (model.fc.bias - model.norm.running_mean) * scale + model.norm.bias


LITERAL = {
    "Net": plain("fc"),
    "DenseNetLike": plain("classifier"),
    "ReturnsDict": plain("fc"),
    "ConvAfterPool": plain("fc"),
    "ConvBeforePool": plain("fc"),
    "NoBias": plain("fc"),
    "Addmm": lambda model: (model.weight, model.bias),
    "Tied": lambda model: (model.names.weight, None),
    "WeightNormed": plain("fc"),
    "Transformer": plain("head"),
    "TokenMean": plain("head"),
    "FunctionalTransformer": plain("head"),
    "TwoHeads": lambda model: (
        torch.cat([model.fc.weight, model.other.weight], dim=1) / 2,
        (model.fc.bias + model.other.bias) / 2,
    ),
}
"""Heads whose weights are parameters of the model: they must be found exactly."""

FOLDED = {
    "Matmul": lambda model: (model.weight, model.bias),
    "Scaled": lambda model: (4.25 * model.fc.weight, 4.25 * model.fc.bias),
    "Offset": lambda model: (model.fc.weight, model.fc.bias + model.offset),
    "InPlace": lambda model: (2 * model.fc.weight, 2 * model.fc.bias + 1),
    "BatchNormed": normalised,
}
"""Heads followed by an affine operation, which is estimated and folded in."""


@pytest.mark.parametrize("name", [*LITERAL, *FOLDED])
def test_embedding_logits_and_head_are_those_of_the_model(name):
    model = seeded(getattr(networks, name))
    features = extract(model, batched(ROWS, BATCH))
    hidden, output = by_hand(model, pictures(ROWS))
    torch.testing.assert_close(features.embedding, hidden, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(features.logits, output, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(features.head(features.embedding), features.logits, rtol=1e-5, atol=2e-6)
    with torch.no_grad():
        weight, bias = (LITERAL | FOLDED)[name](model)
    if name in LITERAL:
        assert torch.equal(features.head.weight, weight)
        assert features.head.bias is None if bias is None else torch.equal(features.head.bias, bias)
    else:
        torch.testing.assert_close(features.head.weight, weight, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(features.head.bias, bias, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "finish"), [("Softmax", F.softmax), ("LogSoftmax", F.log_softmax), ("Sigmoid", lambda x, dim: x.sigmoid())]
)
def test_the_logits_before_a_softmax_or_sigmoid_are_used_with_a_warning(name, finish):
    model = seeded(getattr(networks, name))
    with pytest.warns(UserWarning, match=rf"{name} returns probabilities; the logits before"):
        features = extract(model, batched(ROWS, BATCH))
    assert features.multilabel is (name == "Sigmoid")
    hidden, output = by_hand(model, pictures(ROWS))
    torch.testing.assert_close(features.embedding, hidden, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(features.logits, model.fc(hidden), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(finish(features.logits, dim=1), output, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Prototypes", r"a prototype head \(distances to class centres\)"),
        ("CosinePerClass", "a cosine head of an unknown form"),
        ("SqueezeNetLike", r"a ReLU between its last convolution and its logits \(fc\)"),
    ],
)
def test_heads_that_are_not_linear_are_refused_with_their_kind(name, reason):
    model = seeded(getattr(networks, name))
    with pytest.raises(HeadError, match=rf"^{name} has {reason}.*head=False keeps only the logits"):
        extract(model, batched(ROWS, BATCH))
    features = extract(model, batched(ROWS, BATCH), head=False)
    torch.testing.assert_close(features.logits, by_hand(model, pictures(ROWS))[1])
    assert features.head is None
    assert features.width == 0


@pytest.mark.filterwarnings("ignore:.*returns probabilities")
@pytest.mark.parametrize("function", [torch.sigmoid, torch.tanh, F.softplus, F.relu, torch.exp])
def test_a_non_linearity_is_never_taken_for_a_scale_on_a_small_range(function):
    # without training all logits are close together: a sigmoid is nearly straight there,
    # and every class is either always or never above the zero of a ReLU
    class Finished(networks.Net):
        def forward(self, images):
            return function(super().forward(images))

    if function is torch.sigmoid:
        assert located(seeded(Finished)).finish is torch.sigmoid
        return
    with pytest.raises(HeadError, match="Finished: no linear operation produces the logits"):
        located(seeded(Finished))


def test_a_relu_after_the_head_is_refused_with_the_candidates_listed():
    model = spread(seeded(networks.FinalReLU))
    with pytest.raises(HeadError, match=rf"FinalReLU.*fc \(linear, {WIDTH} -> {CLASSES}\).*Pass head="):
        extract(model, batched(ROWS, BATCH))

    with pytest.raises(HeadError, match=r"head='fc' does not produce the logits"):
        extract(model, batched(ROWS, BATCH), head="fc")


def test_a_model_without_linear_operations_is_refused():
    class Nothing(nn.Module):
        def forward(self, images):
            return images.mean(dim=(2, 3))

    with pytest.raises(HeadError, match="Last linear operations: none"):
        located(Nothing())


# head= -----------------------------------------------------------------------------------------


class TwoCandidates(networks.Net):
    """Two modules give exactly the same logits; the model returns those of the second."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(CLASSES, CLASSES, bias=False)
        with torch.no_grad():
            self.last.weight.copy_(torch.eye(CLASSES))

    def forward(self, images):
        return self.last(super().forward(images))


def test_head_names_the_module_to_use_which_must_exist():
    model = seeded(TwoCandidates)
    found = extract(model, batched(ROWS, BATCH))
    named = extract(model, batched(ROWS, BATCH), head="fc")
    assert torch.equal(found.head.weight, torch.eye(CLASSES)), "the last linear operation is the head"
    assert torch.equal(named.head.weight, model.fc.weight)
    torch.testing.assert_close(named.embedding, by_hand(model, pictures(ROWS))[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(named.logits, found.logits)
    with pytest.raises(ArgumentError, match=r"head='fcc' is not a module of TwoCandidates"):
        extract(model, batched(ROWS, BATCH), head="fcc")


# Wrappers, devices and dtypes -----------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [nn.DataParallel, networks.Compiled, lambda m: networks.Compiled(nn.DataParallel(m))])
def test_wrappers_are_removed(wrap):
    model = seeded(networks.Net)
    wrapped = wrap(model)
    assert unwrap(wrapped) is model
    features = extract(wrapped, batched(ROWS, BATCH), layers=["body"])
    bare = extract(model, batched(ROWS, BATCH), layers=["body"])
    assert torch.equal(features.embedding, bare.embedding)
    assert torch.equal(features.layers["body"], bare.layers["body"])
    assert torch.equal(features.head.weight, model.fc.weight)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ["Net", "Addmm"])
def test_models_of_other_dtypes(name, dtype):
    model = seeded(getattr(networks, name)).to(dtype)
    features = extract(model, [(images.to(dtype), labels) for images, labels in batched(ROWS, BATCH)])
    hidden, output = by_hand(model, pictures(ROWS).to(dtype))
    tolerance = 1e-6 if dtype == torch.float64 else 2e-2
    assert features.embedding.dtype == torch.float32
    torch.testing.assert_close(features.embedding, hidden.float(), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(features.logits, output.float(), rtol=tolerance, atol=tolerance)


def test_a_model_that_takes_another_path_later_is_caught():
    class TwoPaths(networks.Net):
        def forward(self, images):
            logits = super().forward(images)
            return logits * 3 if bool((images == 77).any()) else logits

    batches = [pictures(5), pictures(5, seed=1)]
    batches[1][2, 0, 0, 0] = 77
    with pytest.raises(HeadError, match="the head fc does not reproduce this batch's logits"):
        extract(seeded(TwoPaths), batches)


@pytest.mark.parametrize(
    "output",
    [
        pytest.param([[float("inf"), 2.0], [9.0, 12.0]], id="beside a row that is not finite"),
        pytest.param([[float("nan"), 2.0], [9.0, 12.0]], id="beside a row of NaN"),
        pytest.param([[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]], id="more classes"),
        pytest.param([[1.0], [3.0]], id="fewer classes"),
    ],
)
def test_logits_that_the_head_does_not_reproduce_are_refused(output):
    found = LocatedHead(Head(torch.eye(2)), (), "linear", "fc")
    embedding = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(HeadError, match="the head fc does not reproduce this batch's logits"):
        found.check(embedding, torch.tensor(output))


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_rows_that_are_not_finite_are_not_compared(value):
    found = LocatedHead(Head(torch.eye(2)), (), "linear", "fc")
    output = torch.tensor([[value, 2.0], [3.0, 4.0]])
    got = found.logits(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), output)
    torch.testing.assert_close(got, output, rtol=0, atol=0, equal_nan=True)


# Other ways to write a head -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        lambda m, h: torch.mm(h, mat2=m.fc.weight.T),
        lambda m, h: torch.addmm(m.fc.bias, mat1=h, mat2=m.fc.weight.T),
        lambda m, h: F.linear(h, m.fc.weight) + torch.ones(WIDTH) @ m.fc.weight.T,
    ],
    ids=["mm with mat2=", "addmm with keywords", "plus a vector product"],
)
def test_a_head_is_found_however_it_is_written(answer):
    model = seeded(lambda: networks.Headed(answer))
    features = extract(model, batched(ROWS, BATCH))
    hidden, output = by_hand(model, pictures(ROWS))
    torch.testing.assert_close(features.embedding, hidden, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(features.head(features.embedding), output, rtol=1e-5, atol=1e-5)
