"""Input steps: the gradient is correct, the step is the one asked for, and the model is left as it was."""

import copy
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from reference import gradient as slow
from support import networks
from support.networks import CLASSES, WIDTH, batched, one_thread, pictures, seeded  # noqa: F401
from support.smooth import Smooth, classes_of, deconf, distance_twin, fitted, plain, sharpness, small, smooth
from support.snapshots import lived_in, numbers, portrait, same
from torch.nn import functional as F

from oodles.data.inputs import Inputs
from oodles.detectors import GODIN, ODIN, Mahalanobis
from oodles.errors import ArgumentError, FileError, HeadError
from oodles.features import Features
from oodles.network.extraction import extract
from oodles.network.forward import CPU_ROWS, ForwardPass
from oodles.network.perturbation import FGSM_SIZE, _gradients, channel_bounds, fgsm, run_with_steps
from oodles.selection.tuning import tune
from oodles.steps import Step

# The gradient -------------------------------------------------------------------------------------


def case(kind):
    """A model, the input step of a detector, the reference for its objective, and options for ``extract``."""
    if kind in ("odin", "odin at 1"):
        model, temperature = smooth(), {} if kind == "odin" else {"temperature": 1.0}
        twin = slow.doubt(plain(model), temperature.get("temperature", 1000.0))
        return model, ODIN(epsilon=0.1, **temperature).step(0.1), twin, {}
    if kind == "godin":
        model = deconf()
        twin = slow.remoteness(plain(model, "layer.fc.cosine"))
        return model, GODIN(epsilon=0.1).step(0.1), twin, {"head": False, "layers": ["fc.cosine"]}
    model = smooth()
    detector = fitted(model, Mahalanobis(layers=["first"], epsilon=0.1)).double()
    inner, last = detector.trials()
    if kind == "mahalanobis":
        return model, last, distance_twin(model), {}
    return model, inner, distance_twin(model, "layer.first"), {"layers": ["first"]}


def moved(model, images, objective, epsilon, *, std=(), **options):
    """The images that the network sees after a step."""
    seen = []
    with model.register_forward_pre_hook(lambda _, given: seen.append(given[0])):
        extract(model, [images], steps=[Step("s", objective, epsilon, std=std)], **options)
    return seen[-1]


KINDS = ["odin", "odin at 1", "mahalanobis", "mahalanobis in a layer", "godin"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_agrees_with_finite_differences(kind):
    model, step, twin, options = case(kind)
    images = small(3, seed=5)
    forward = ForwardPass(model, options.get("head"), options.get("layers", ()))
    first, gradients = _gradients(forward, Inputs((images,)), images, [step.objective])
    np.testing.assert_allclose(step.objective(first.columns).detach(), twin(images.numpy()), rtol=1e-5)
    want = np.stack([slow.slopes(twin, image) for image in images.numpy()])
    assert np.abs(want).max() > 0
    np.testing.assert_allclose(gradients[step.objective], want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("std", [(), (0.2, 0.5, 2.0)])
def test_images_move_against_the_sign_of_the_gradient(kind, std):
    model, step, twin, options = case(kind)
    images = small(3, seed=6)
    got = moved(model, images, step.objective, 0.02, std=std, **options)
    want = np.stack([slow.stepped(twin, image, 0.02, std) for image in images.numpy()])
    np.testing.assert_allclose(got, want, atol=1e-12)
    assert twin(got.numpy()).sum() < twin(images.numpy()).sum(), "the step lowers the objective"


def test_a_pixel_with_zero_gradient_does_not_move():
    class IgnoresFirstColumn(Smooth):
        def hidden(self, images):
            return super().hidden(images[..., 1:])

    images = small(4)
    got = moved(seeded(IgnoresFirstColumn).double(), images, sharpness, 0.25)
    assert torch.equal(got[..., 0], images[..., 0])
    np.testing.assert_allclose((got - images)[..., 1:].abs(), 0.25, atol=1e-12)


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_the_batch_size_changes_nothing(batch_size):
    model, images = smooth(), small(CPU_ROWS + 8)
    steps = (*ODIN(epsilon=0.1).steps(), Step("sharp", sharpness, 0.2, keep="embedding"))
    one, other = (extract(model, images.split(size), steps=steps) for size in (batch_size, len(images)))
    for name, column in one.layers.items():
        torch.testing.assert_close(column, other.layers[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_dtype_and_layout_are_kept_and_the_images_are_not_modified(dtype, layout):
    images = small(CPU_ROWS + 3, dtype=dtype).contiguous(memory_format=layout).requires_grad_()
    before = images.clone()
    got = attacked(smooth(dtype=dtype), images, classes_of(len(images)))
    assert (got.dtype, got.device, got.shape, got.stride()) == (dtype, images.device, images.shape, images.stride())
    assert got.is_contiguous(memory_format=layout)
    assert torch.equal(images, before)
    assert not torch.equal(got, images)
    assert not got.requires_grad
    assert images.grad is None
    features = extract(smooth(dtype=dtype), [images], steps=[Step("s", sharpness, 0.1)])
    assert not any(column.requires_grad for column in (*features.layers.values(), features.logits))


def test_the_objective_receives_the_requested_layers():
    model, seen = smooth(), []

    def keep(columns):
        seen.append(columns)
        return columns["layer.second"].sum(dim=1)

    step = Step("s", keep, 0.1)
    extract(model, [small(4)], steps=[step], layers=["first", "second"])
    assert set(seen[0]) == {"embedding", "logits", "layer.first", "layer.second"}
    extract(model, [small(4)], steps=[step], head=False, layers=["second"])
    assert set(seen[1]) == {"logits", "layer.second"}


# What is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize("std", [(0.5,), (0.5, 0.5), (0.5, 0.5, 0.5, 0.5)])
def test_a_std_with_the_wrong_number_of_channels_is_refused(std):
    with pytest.raises(ArgumentError, match=r"std=.* does not fit images of shape \(3, 5, 5\)"):
        extract(smooth(), [small(2)], steps=ODIN(epsilon=0.1, std=std).steps())


class Whole(Smooth):
    @torch.no_grad()
    def forward(self, images):
        return super().forward(images)


class Frozen(Smooth):
    """The body under no_grad, as in a linear probe: only the head has gradients."""

    def hidden(self, images):
        with torch.no_grad():
            return super().hidden(images)


class Detached(Smooth):
    def hidden(self, images):
        return super().hidden(images).detach()


@pytest.mark.parametrize("make", [Whole, Frozen, Detached])
@pytest.mark.parametrize("trainable", [True, False])
def test_a_model_that_blocks_gradients_to_its_input_is_refused(make, trainable):
    model = seeded(make).double().requires_grad_(trainable)
    with pytest.raises(HeadError, match=f"{make.__name__} passes no gradient to its input"):
        extract(model, [small(2)], steps=ODIN(epsilon=0.1).steps())


# The model is left exactly as it was ------------------------------------------------------------------


def fails(columns):
    raise RuntimeError("the objective failed")


def backward_passes(objective):
    """Everything that runs a backward pass."""
    step = Step("s", objective, 0.1)
    return {
        "extract": lambda model: extract(model, batched(12, 6), steps=[*ODIN(epsilon=0.1).steps(), step]),
        "fgsm": lambda model: attacked(model, *batched(12, 12)[0]),
        "tune": lambda model: tune([ODIN()], model, batched(20, 10)),
    }


@pytest.mark.parametrize(
    ("caller", "objective"),
    [("extract", sharpness), ("fgsm", sharpness), ("tune", sharpness), ("extract", fails)],
)
@pytest.mark.parametrize("mode", [True, False])
def test_the_model_is_left_as_it_was(caller, objective, mode):
    model = lived_in()
    grad = model.body.conv2.weight.grad.clone()
    with torch.set_grad_enabled(mode):
        before, weights = portrait(model), numbers(model)
        run = backward_passes(objective)[caller]
        with pytest.raises(RuntimeError) if objective is fails else nullcontext():
            run(model)
        assert portrait(model) == before
        assert torch.is_grad_enabled() is mode
    assert torch.equal(model.body.conv2.weight.grad, grad)
    for key, tensor in numbers(model).items():
        assert torch.equal(tensor, weights[key]), key


def test_hooks_on_parameters_are_not_called():
    model = smooth()
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: pytest.fail("a parameter was given a gradient"))
    extract(model, [small(4)], steps=ODIN(epsilon=0.1).steps())
    assert model.backwards == [4]


@pytest.mark.parametrize("own", [False, True])
def test_a_caller_in_inference_mode_gets_the_same_result(own):
    model, images = smooth(), small(4)
    want = extract(model, [images], steps=ODIN(epsilon=0.1).steps())
    with torch.inference_mode():
        given = small(4) if own else images
        got = extract(model, [given], steps=ODIN(epsilon=0.1).steps())
    for name, column in want.layers.items():
        assert torch.equal(got.layers[name], column)


# Passes through extract -------------------------------------------------------------------------------


def after_a_step(model, images, epsilon, temperature):
    """ODIN's step with plain autograd; logits may be off by a constant, which the softmax ignores."""

    def raw(inputs):
        output = model(inputs)
        output = output["logits"] if isinstance(output, dict) else output
        return output.log() if isinstance(model, networks.Softmax) else output

    leaf = images.clone().requires_grad_()
    logits = raw(leaf)
    loss = F.cross_entropy(logits / temperature, logits.argmax(dim=1), reduction="sum")
    (gradient,) = torch.autograd.grad(loss, leaf)
    return (raw(images - epsilon * gradient.sign()) / temperature).log_softmax(dim=1).amax(dim=1).detach()


HEADS = (
    *("Net", "NoBias", "Tied", "Matmul", "Addmm", "ConvAfterPool", "ConvBeforePool", "Scaled", "Offset", "InPlace"),
    *("TwoHeads", "Softmax", "LogSoftmax", "ReturnsDict", "WeightNormed", "Transformer", "FunctionalTransformer"),
)


@pytest.mark.filterwarnings("ignore:.*returns probabilities")
@pytest.mark.parametrize("name", HEADS)
def test_steps_work_through_heads_of_every_kind(name):
    model, images = seeded(getattr(networks, name)).double().eval(), pictures(7).double()
    detector = ODIN(temperature=2.0, epsilon=0.05)
    features = extract(model, [images], steps=detector.steps())
    want = after_a_step(model, images, 0.05, 2.0)
    torch.testing.assert_close(detector.score(features).double(), want, rtol=1e-5, atol=1e-5)
    unmoved = ODIN(temperature=2.0, epsilon=0.0).score(features)
    assert bool((detector.score(features) >= unmoved).all())
    assert not torch.allclose(detector.score(features), unmoved, rtol=1e-3), "the test distinguishes them"


def test_the_plain_columns_are_those_of_a_pass_without_steps():
    model = smooth(dtype=torch.float32)
    loader = [(small(9, dtype=torch.float32), classes_of(9))]
    stepped = extract(model, loader, steps=ODIN(epsilon=0.1).steps())
    same(
        extract(model, loader),
        Features(stepped.embedding, logits=stepped.logits, labels=stepped.labels, head=stepped.head),
    )


def test_a_step_keeps_the_requested_column():
    model, images = smooth(), small(5)
    steps = [Step(keep, sharpness, 0.3, keep=keep) for keep in ("logits", "embedding", "layer.first")]
    features = extract(model, [images], steps=steps, layers=["first"])
    after = moved(model, images, sharpness, 0.3)
    for step in steps:
        assert features.holds(step.column)
        np.testing.assert_allclose(
            features.column(step.column), plain(model, step.keep)(after.numpy()), rtol=1e-5, atol=1e-5
        )


def test_without_steps_there_is_no_backward_pass():
    model = smooth()
    with torch.no_grad():
        columns = run_with_steps(ForwardPass(model, False), Inputs((small(6),)), []).columns
    assert list(columns) == ["logits"]
    assert (model.forwards, model.backwards) == ([6], [])


def test_a_store_with_other_steps_is_refused(tmp_path):
    model, detector = smooth(dtype=torch.float32), Mahalanobis(epsilon=0.1)
    loader = [(small(20, dtype=torch.float32), classes_of(20))]
    stores = {"odin": ODIN(epsilon=0.1), "mahalanobis": fitted(model, detector)}
    for name, one in stores.items():
        extract(model, loader, steps=one.steps(), store=tmp_path / name)
    refit = fitted(model, copy.deepcopy(detector), rows=60)
    assert [step.name for step in refit.steps()] == [step.name for step in detector.steps()]
    extract(model, loader, steps=fitted(model, copy.deepcopy(detector)).steps(), store=tmp_path / "mahalanobis")
    wrong = [
        ("odin", ODIN(epsilon=0.2).steps()),
        ("odin", ODIN(temperature=10.0, epsilon=0.1).steps()),
        ("odin", ODIN(epsilon=0.1, std=(0.5, 0.5, 0.5)).steps()),
        ("odin", (*ODIN(epsilon=0.1).steps(), *ODIN(epsilon=0.2).steps())),
        ("mahalanobis", refit.steps()),
        ("mahalanobis", fitted(model, Mahalanobis(epsilon=0.1, std=(0.5, 0.5, 0.5))).steps()),
    ]
    for name, steps in wrong:
        with pytest.raises(FileError, match="another steps"):
            extract(model, loader, steps=steps, store=tmp_path / name)


# Adversarial images ---------------------------------------------------------------------------------


def attacked(model, images, labels, bounds=None):
    """The images of ``fgsm``, by default in the range that they have."""
    return fgsm(model, Inputs((images,)), labels, bounds or channel_bounds(images)).args[0]


def losses(model, images, labels):
    with torch.no_grad():
        return F.cross_entropy(model(images), labels, reduction="none")


def test_adversarial_images_raise_the_loss_and_stay_in_bounds():
    model, images, labels = smooth(), small(CPU_ROWS + 20), classes_of(CPU_ROWS + 20)
    adversarial = attacked(model, images, labels)
    raised = losses(model, adversarial, labels) > losses(model, images, labels)
    assert float(raised.double().mean()) > 0.95
    bounds = torch.full((1, 3, 1, 1), -0.5, dtype=torch.float64), torch.full((1, 3, 1, 1), 0.25, dtype=torch.float64)
    inside = attacked(model, images, labels, bounds)
    assert (float(inside.min()), float(inside.max())) == (-0.5, 0.25)


def test_adversarial_images_agree_with_finite_differences():
    # more than one batch, so that every batch must use its own labels
    model, images, labels = smooth(), small(CPU_ROWS + 4), classes_of(CPU_ROWS + 4)
    low, high = images.numpy().min(axis=(0, 2, 3)), images.numpy().max(axis=(0, 2, 3))
    network, want = plain(model), []
    for image, label in zip(images.numpy(), labels.tolist(), strict=True):

        def loss(rows, label=label):
            logits = network(rows)
            return np.log(np.exp(logits - logits[:, [label]]).sum(axis=1))

        want.append(slow.fgsm(loss, image, FGSM_SIZE, low, high))
    np.testing.assert_allclose(attacked(model, images, labels), np.stack(want), atol=1e-12)


def test_adversarial_images_need_no_linear_head():
    model, images, labels = deconf(), small(12), classes_of(12)
    assert bool((losses(model, attacked(model, images, labels), labels) > losses(model, images, labels)).any())


def test_bounds_are_per_channel():
    images = small(6)
    low, high = channel_bounds(images)
    torch.testing.assert_close(low, images.amin(dim=(0, 2, 3), keepdim=True))
    torch.testing.assert_close(high, images.amax(dim=(0, 2, 3), keepdim=True))
    assert channel_bounds(images.flatten(1))[0].shape == (1, 75)
