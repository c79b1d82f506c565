"""Text, tables, sequences and keyword arguments: extraction, stores and guards are those of the model by hand."""

import copy
import warnings

import pytest
import torch
from support.networks import CLASSES, one_thread, seeded  # noqa: F401
from support.several_inputs import BATCH, ROWS, KeywordOnly, Sequences, Table, Text, batches_of, inputs_of, labels_of
from support.snapshots import same
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from oodles.calibration import calibrate
from oodles.data.inputs import Inputs
from oodles.detectors import ODIN, Mahalanobis, parse
from oodles.errors import ArgumentError, DataError, FileError, FitWarning
from oodles.features import Features
from oodles.guard import Guard
from oodles.network import storing
from oodles.network.extraction import extract
from oodles.network.outputs import logits_of
from oodles.network.perturbation import channel_bounds, fgsm
from oodles.network.taps import eval_mode
from oodles.selection.outliers import outlier_features
from oodles.selection.tuning import tune

KINDS = [Text, Table, KeywordOnly, Sequences]


def by_hand(model, inputs):
    with eval_mode(model):
        return model.hidden(**inputs), logits_of(model(**inputs))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, BATCH, ROWS])
def test_embedding_logits_and_head_are_those_of_the_model(kind, size):
    model, inputs = seeded(kind), inputs_of(kind)
    features = extract(model, batches_of(inputs, size))
    hidden, logits = by_hand(model, inputs)
    torch.testing.assert_close(features.embedding, hidden, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(features.logits, logits, rtol=1e-5, atol=1e-6)
    assert torch.equal(features.labels, labels_of())
    assert torch.equal(features.head.weight, model.head.weight)
    assert torch.equal(features.head.bias, model.head.bias)


# Labels of several classes ----------------------------------------------------------------------


SEVERAL = (torch.arange(ROWS)[:, None] % torch.arange(2, 2 + CLASSES) == 0).float()


@pytest.mark.parametrize("store", [False, True])
def test_labels_of_several_classes_need_multilabel(tmp_path, store):
    model, inputs = seeded(Table), inputs_of(Table)
    loader = [{**inputs, "labels": SEVERAL}]
    with pytest.raises(DataError, match=r"labels \(18, 5\) of zeros and ones; pass multilabel=True"):
        extract(model, loader, store=tmp_path / "a" if store else None)
    features = extract(model, loader, multilabel=True, store=tmp_path / "b" if store else None)
    assert features.multilabel
    assert features.labels is None
    plain = extract(model, [{**inputs, "labels": labels_of()}], multilabel=False)
    assert torch.equal(features.logits, plain.logits)
    assert not plain.multilabel


@pytest.mark.parametrize("multilabel", [True, False])
def test_a_mask_is_never_taken_for_labels(multilabel):
    """(ids, mask) are an input and labels by default, and a mask of zeros and ones looks like labels."""
    inputs = inputs_of(Text)
    batch = inputs["input_ids"], inputs["attention_mask"]
    with pytest.raises(DataError, match=r"zeros and ones \(18, 6\) as labels, but .* has 5 classes"):
        extract(seeded(Text), [batch], multilabel=multilabel)
    features = extract(seeded(Text), [(batch, labels_of())])
    torch.testing.assert_close(features.logits, by_hand(seeded(Text), inputs)[1], rtol=1e-5, atol=1e-6)


# Stores -----------------------------------------------------------------------------------------


def changed(value):
    """The same with one value changed."""
    if isinstance(value, PackedSequence):
        return value._replace(data=changed(value.data))
    other = value.clone()
    other.view(-1)[-1] = 1 - other.view(-1)[-1]
    return other


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in inputs_of(kind)])
def test_a_change_in_any_input_is_noticed(tmp_path, monkeypatch, kind, name):
    monkeypatch.setattr(storing, "SHARD_ELEMENTS", 1)  # one shard per batch
    batches = batches_of(inputs_of(kind))
    extract(seeded(kind), batches, store=tmp_path / "s")
    other = copy.deepcopy(batches)
    other[1][name] = changed(other[1][name])
    with pytest.raises(FileError, match=r"other inputs, .* they differ at shard-00001"):
        extract(seeded(kind), other, store=tmp_path / "s")
    same(extract(seeded(kind), batches, store=tmp_path / "s"), Features.load(tmp_path / "s"))


def test_names_and_multilabel_of_another_extraction_are_refused(tmp_path):
    model, batches = seeded(Text), batches_of(inputs_of(Text))
    extract(model, batches, store=tmp_path / "s", classes=list("abcde"), multilabel=False)
    for name, classes, multilabel in (("classes", "vwxyz", False), ("multilabel", "abcde", True)):
        with pytest.raises(FileError, match=f"another {name}"):
            extract(model, batches, store=tmp_path / "s", classes=list(classes), multilabel=multilabel)
    again = extract(model, batches, store=tmp_path / "s", classes=list("abcde"), multilabel=False)
    assert (again.class_names, again.multilabel) == (tuple("abcde"), False)


# Guards -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spec", ["dice(0.5)", "knn(k=2)", "energy"])
def test_a_guard_takes_what_the_model_takes(kind, spec):
    model, inputs = seeded(kind), inputs_of(kind, 60)
    held_out = batches_of(inputs_of(kind, 60, seed=7), 15)
    guard = Guard.fit(model, batches_of(inputs, 20), calibration=held_out, detector=spec)
    new = inputs_of(kind, 9, seed=50)
    verdict = guard(**new)
    assert torch.equal(verdict.logits, by_hand(model, new)[1]), "bit for bit"
    assert torch.equal(verdict.label, verdict.logits.argmax(dim=1))
    features = extract(model, batches_of(new, 9))
    torch.testing.assert_close(verdict.score, guard.detector.score(features), rtol=1e-5, atol=1e-5)
    assert torch.equal(guard(**new, labels=labels_of(9)).score, verdict.score), "labels are ignored"
    if kind is not KeywordOnly:
        assert torch.equal(guard(*new.values()).score, verdict.score)
    assert len(guard.explain(**new)) == 9


FORMS = {
    "plain": lambda head, h: head(h),
    "scaled": lambda head, h: head(h) / 1.5,
    "a product and an offset": lambda head, h: h @ head.weight.T + head.bias,
    "cosine": lambda head, h: 10 * F.linear(F.normalize(h), F.normalize(head.weight)),
    "cosine, divided": lambda head, h: h @ head.weight.T / h.norm(dim=1, keepdim=True),
}


@pytest.mark.parametrize("kind", [Text, Table, Sequences])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore:.* may be multi-label")
def test_a_guard_may_be_given_one_input_at_a_time_from_the_start(kind, form):
    """The last layer is found on the first batch, and a single input, repeated, shows neither a scale nor an offset."""

    class Other(kind):
        def forward(self, **inputs):
            return FORMS[form](self.head, self.hidden(**inputs))

    model, inputs = seeded(Other).eval(), inputs_of(kind, 60)
    guard = Guard.fit(model, [inputs], calibration=[inputs_of(kind, 60, seed=7)], detector="dice(0.5)")
    want = guard(**inputs).score
    fresh = Guard(model, guard.detector, guard.threshold)
    for row, batch in enumerate(batches_of(inputs, 1)[:5]):
        one = fresh(**{name: part for name, part in batch.items() if name != "labels"})
        torch.testing.assert_close(one.score, want[row : row + 1], rtol=1e-4, atol=1e-4)


def test_fit_takes_labels_from_where_they_are():
    model, inputs = seeded(Text), inputs_of(Text, 60)
    both = inputs, inputs_of(Text, 60, seed=7)
    named = [[{**each, "target": labels_of(60)}] for each in both]
    placed = [[(labels_of(60), *each.values())] for each in both]
    train, held_out = (batches_of(each, 60) for each in both)
    want = Guard.fit(model, train, calibration=held_out, detector="mahalanobis")
    for (train, held_out), labels in ((named, "target"), (placed, 0)):
        guard = Guard.fit(model, train, calibration=held_out, detector="mahalanobis", labels=labels)
        assert torch.equal(guard(**inputs).score, want(**inputs).score)


def test_adversarial_copies_are_made_with_every_input_of_the_model():
    model, inputs = seeded(Table).eval(), inputs_of(Table, 40)
    labels = labels_of(40)
    moved = fgsm(model, Inputs((), inputs), labels, channel_bounds(inputs["numbers"])).kwargs["numbers"]
    numbers = inputs["numbers"].clone().requires_grad_()
    loss = F.cross_entropy(model(numbers, inputs["categories"]), labels, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, numbers)
    low, high = inputs["numbers"].amin(dim=0), inputs["numbers"].amax(dim=0)
    want = torch.maximum(torch.minimum(inputs["numbers"] + 0.05 * gradient.sign(), high), low)
    torch.testing.assert_close(moved, want)
    detector = Mahalanobis(layers=["mixed"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        detector.fit(extract(model, [{**inputs, "labels": labels}], layers=["mixed"]))
    tune([detector], model, [{**inputs, "labels": labels}])
    assert detector.tuned


# Input steps and synthetic outliers -------------------------------------------------------------


TOKENS = r"no floating-point input: input_ids \(int64 \(.*, attention_mask \(int64"


def test_input_steps_refuse_token_ids_by_name():
    model, batches = seeded(Text), batches_of(inputs_of(Text))
    with pytest.raises(ArgumentError, match=f"the input step odin.*{TOKENS}"):
        tune([ODIN()], model, batches)
    with pytest.raises(ArgumentError, match=f"the input step odin.*{TOKENS}"):
        extract(model, batches, steps=ODIN(epsilon=0.1).steps())
    with pytest.raises(ArgumentError, match=TOKENS):
        Guard.fit(model, batches, calibration=list(batches), detector="odin")


def test_an_input_step_moves_the_floating_point_input_only():
    model, inputs = seeded(Table).double(), inputs_of(Table)
    inputs["numbers"] = inputs["numbers"].double()
    detector = ODIN(temperature=2.0, epsilon=0.05)
    features = extract(model, batches_of(inputs), steps=detector.steps())
    numbers = inputs["numbers"].clone().requires_grad_()
    model.eval()
    logits = model(numbers, inputs["categories"])
    loss = F.cross_entropy(logits / 2, logits.argmax(dim=1), reduction="sum")
    (gradient,) = torch.autograd.grad(loss, numbers)
    with torch.no_grad():
        moved = model(inputs["numbers"] - 0.05 * gradient.sign(), inputs["categories"])
    want = (moved / 2).log_softmax(dim=1).amax(dim=1)
    torch.testing.assert_close(detector.score(features).double(), want, rtol=1e-5, atol=1e-5)


def test_an_input_step_is_refused_if_it_could_move_several_inputs():
    class Numbers(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, CLASSES)

        def forward(self, a, b):
            return self.head(a + b)

    message = r"takes several floating-point inputs: images \(float32 \(6, 4\)\), input 1 \(float32 \(6, 4\)\)"
    with pytest.raises(ArgumentError, match=message):
        extract(seeded(Numbers), [(torch.rand(6, 4), torch.rand(6, 4))], steps=ODIN(epsilon=0.1).steps())


def test_synthetic_outliers_of_images_that_are_given_by_name():
    model, batches = seeded(KeywordOnly), batches_of(inputs_of(KeywordOnly))
    found = outlier_features(model, batches, count=10)
    assert all(len(part) == 10 for part in found.values())
    detector = parse("energy")
    threshold = calibrate(detector.score(extract(model, batches)), 0.9)
    assert Guard(model, detector, threshold)(pixel_values=batches[0]["pixel_values"]).is_id.any()
