"""``Guard``: the model's own logits, one pass, and no invalid input ever called in-distribution."""

import copy
import re
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import networks
from support.networks import CLASSES, WIDTH, batched, one_thread, pictures, seeded  # noqa: F401
from support.snapshots import numbers, portrait
from torch import nn

from oodles.calibration import Threshold, calibrate
from oodles.data.transforms import Transform
from oodles.deploy.saving import load_detector, load_guard, save_detector
from oodles.detectors import DICE, MSP, ODIN, DefaultEnsemble, Energy, parse
from oodles.errors import ArgumentError, DataError, FileError, HeadError, NotFittedError, ShapeError
from oodles.guard import Guard, Verdict
from oodles.head import Head
from oodles.network.extraction import extract
from oodles.records.files import LOCK

ROWS = 40


def guarded(make=networks.Net, detector=None, *, id_rate=0.9):
    model = seeded(make)
    features = extract(model, batched(ROWS, 10))
    detector = (detector or DICE(p=0.5)).fit(features)
    return Guard(model, detector, calibrate(detector.score(features), id_rate)), features


# Verdicts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["Net", "ConvBeforePool", "Tied", "Matmul", "Scaled", "TwoHeads", "ReturnsDict", "Transformer"]
)
@pytest.mark.parametrize("spec", ["dice(0.5)", "react(90)+dice(0.5)+msp", "msp", "energy"])
def test_the_verdict_is_the_models_output_and_the_detectors_score(name, spec):
    guard, _ = guarded(getattr(networks, name), parse(spec))
    images = pictures(13, seed=7)
    verdict = guard(images)
    with torch.no_grad():
        output = guard.model(images)
    logits = output["logits"] if isinstance(output, dict) else output
    assert isinstance(verdict, Verdict)
    assert torch.equal(verdict.logits, logits), "bit for bit"
    assert torch.equal(verdict.label, logits.argmax(dim=1))
    features = extract(guard.model, [images])
    torch.testing.assert_close(verdict.score, guard.detector.score(features), rtol=1e-5, atol=1e-5)
    assert torch.equal(verdict.is_id, verdict.score >= guard.threshold.value)
    assert verdict.is_id.dtype == torch.bool


def test_the_label_is_that_of_the_dense_network():
    guard, features = guarded(lambda: networks.spread(networks.Net()), DICE(p=0.9))
    sparse = torch.nn.functional.linear(features.embedding, guard.detector.weight_, guard.detector.bias_)
    assert not torch.equal(sparse.argmax(dim=1), features.logits.argmax(dim=1)), "the test distinguishes them"
    assert torch.equal(guard(pictures(ROWS)).label, features.logits.argmax(dim=1))


@pytest.mark.parametrize("spec", ["dice(0.5)", "msp", "react(90)", "max_logit"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("first", [True, False])
def test_an_image_that_is_not_finite_is_never_in_distribution(spec, value, first):
    guard, _ = guarded(detector=parse(spec))
    if not first:
        guard(pictures(3))
    images = pictures(6, seed=3)
    plain = guarded(detector=parse(spec))[0](images)
    images[2, 1, 3, 3] = value
    verdict = guard(images)
    assert not bool(verdict.is_id[2])
    others = [0, 1, 3, 4, 5]
    torch.testing.assert_close(verdict.score[others], plain.score[others])
    assert torch.equal(verdict.is_id[others], plain.is_id[others]), "the other images are not affected"


@pytest.mark.parametrize("spec", ["energy", "max_logit", "msp", "entropy", "dice(0.5)", "react(90)+dice(0.5)"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_an_image_with_infinite_logits_is_never_in_distribution_and_affects_no_later_batch(spec, value):
    # without a batch norm or second convolution, infinities do not become NaN: the logits are +inf and -inf,
    # their energy is +inf, and a clipped embedding is finite again; the head is located on the first batch
    def flat():
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, CLASSES))

    guard, _ = guarded(flat, parse(spec))
    wanted = guarded(flat, parse(spec))[0](pictures(5, seed=3))
    images = pictures(3, seed=3)
    images[1, 0, 0, 0] = value
    accepted = guard(images).is_id[1]
    assert value == 3e38 or not bool(accepted)
    assert torch.equal(guard(pictures(5, seed=3)).score, wanted.score)


def test_a_batch_of_nan_is_not_in_distribution():
    for make in (networks.Net, networks.Scaled):
        guard, _ = guarded(make)
        assert not guard(torch.full((3, 3, 8, 8), float("nan"))).is_id.any()


def test_a_model_that_returns_probabilities_is_scored_by_its_logits():
    # the threshold is set on features, which have the logits before the softmax, so the score must use them too
    images = pictures(9, seed=5)

    def scored(spec):
        guard, _ = guarded(networks.Softmax, parse(spec))
        return guard, guard(images), guard.detector.score(extract(guard.model, [images]))

    for spec in ("dice(0.5)", "msp", "energy"):
        with pytest.warns(UserWarning, match="returns probabilities"):
            guard, verdict, wanted = scored(spec)
        with torch.no_grad():
            assert torch.equal(verdict.logits, guard.model(images))
        torch.testing.assert_close(verdict.score, wanted, rtol=1e-5, atol=1e-5)


# Behaviour as a module ----------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["dice(0.5)", "msp"])
def test_one_forward_pass_per_batch(spec):
    guard, _ = guarded(networks.Tied, parse(spec))
    guard(pictures(4))
    for rows in (1, 3, 8):
        before = guard.model.body.calls
        guard(pictures(rows))
        assert guard.model.body.calls == before + 1


def test_it_stays_in_eval_mode_and_leaves_the_model_as_it_was():
    guard, _ = guarded()
    assert guard.train() is guard
    assert not any(module.training for module in guard.modules())
    before = portrait(guard.model)
    statistics = guard.model.body.bn1.running_mean.clone()
    verdict = guard(pictures(4).requires_grad_())
    assert not verdict.logits.requires_grad
    assert not verdict.score.requires_grad
    with pytest.raises(DataError, match=r"Net does not accept images \(float32 \(2, 7, 8, 8\)\)"):
        guard(torch.zeros(2, 7, 8, 8))
    assert portrait(guard.model) == before
    assert torch.equal(guard.model.body.bn1.running_mean, statistics)


@pytest.mark.parametrize("name", ["", "body.bn1"])
def test_a_module_left_in_training_mode_is_in_eval_mode_for_the_call(name):
    guard, _ = guarded()
    before = guard(pictures(4))
    guard.model.get_submodule(name).train()
    state, statistics = portrait(guard.model), numbers(guard.model)
    after = guard(pictures(4))
    assert torch.equal(after.logits, before.logits)
    assert torch.equal(after.score, before.score)
    assert portrait(guard.model) == state
    torch.testing.assert_close(numbers(guard.model), statistics, rtol=0, atol=0)


def test_a_guard_is_in_eval_mode_until_its_call_ends_whatever_another_thread_does():
    """An extraction that ends restores training mode; a guard's call that has begun must not see it."""
    guard, _ = guarded()
    want = guard(pictures(6)).logits
    submitted, inside, extracted = Event(), Event(), Event()

    def halfway(*_):
        if submitted.is_set():
            inside.set()
            assert extracted.wait(20)

    guard.model.body.conv1.register_forward_pre_hook(halfway)
    guard.model.train()
    with ThreadPoolExecutor(1) as pool:

        def loader():
            yield pictures(4)
            submitted.set()
            calls.append(pool.submit(guard, pictures(6)))
            assert inside.wait(20)

        calls = []
        extract(guard.model, loader())
        extracted.set()
        assert torch.equal(calls[0].result(20).logits, want)
    assert guard.model.training


def test_a_row_does_not_depend_on_the_others():
    guard, _ = guarded()
    images = pictures(8, seed=4)
    whole = guard(images)
    for row in range(8):
        one = guard(images[row : row + 1])
        torch.testing.assert_close(one.score[0], whole.score[row], rtol=1e-5, atol=1e-6)
        assert one.label[0] == whole.label[row]


def test_it_converts_to_another_precision():
    guard, _ = guarded()
    plain = guard(pictures(9)).score
    wide = copy.deepcopy(guard).double()(pictures(9).double()).score
    assert wide.dtype == torch.float64
    torch.testing.assert_close(wide, plain.double(), rtol=1e-4, atol=0)


def test_autocast_does_not_affect_the_scores():
    # not every processor has half-precision kernels, so the model needs none
    class Sums(nn.Module):
        def forward(self, images):
            return images.sum(dim=3).flatten(1)

    class Watched(MSP):
        def forward(self, embedding, logits):
            assert not torch.is_autocast_enabled("cpu")
            return super().forward(embedding, logits)

    features = extract(Sums(), [pictures(40)], head=False)
    guard = Guard(Sums(), Watched(), calibrate(MSP().score(features)), head=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        verdict = guard(pictures(40))
    assert torch.equal(verdict.score, MSP().score(features))


def test_threads_may_share_a_guard_from_its_first_call():
    serial, _ = guarded()
    want = [serial(pictures(4, seed=seed)).score for seed in range(24)]
    shared, _ = guarded()
    guard = Guard(shared.model, shared.detector, shared.threshold, head="fc")
    with ThreadPoolExecutor(6) as pool:
        got = list(pool.map(lambda seed: guard(pictures(4, seed=seed)).score, range(24)))
    assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))


# Guard.fit ----------------------------------------------------------------------------------------


TRAIN, CALIBRATION = batched(120, 40), batched(60, 20, seed=9)


@pytest.mark.parametrize("head", [None, "fc"])
@pytest.mark.parametrize("calibration", [CALIBRATION, None], ids=["calibration images", "a fifth of the training rows"])
def test_fit_equals_its_steps_by_hand(calibration, head):
    model = seeded(networks.Net)
    before = portrait(model)
    guard = Guard.fit(model, TRAIN, calibration=calibration, detector=DICE(p=0.5), id_rate=0.8, head=head)
    assert {**portrait(model), "training": before["training"]} == before
    features = extract(model, TRAIN)
    train, held_out = (features, extract(model, CALIBRATION)) if calibration else features.split()
    detector = DICE(p=0.5).fit(train)
    assert guard.threshold == calibrate(detector.score(held_out), 0.8)
    assert torch.equal(guard.detector.weight_, detector.weight_)
    assert guard.head == head
    assert guard.model is model


def test_fit_uses_the_default_detector_if_none_is_given():
    guard = Guard.fit(networks.spread(seeded(networks.Net)), TRAIN, calibration=CALIBRATION)
    assert isinstance(guard.detector, DefaultEnsemble)
    assert guard.threshold.id_rate == 0.95
    assert guard.threshold.calibration_size == 60


def test_fit_tunes_a_detector_that_needs_the_network_on_the_calibration_images():
    guard = Guard.fit(seeded(networks.Net), TRAIN, calibration=CALIBRATION, detector=ODIN())
    assert guard.detector.step_size in ODIN.grid
    assert torch.isfinite(guard(pictures(5)).score).all()
    with pytest.raises(ArgumentError, match="give calibration images"):
        Guard.fit(seeded(networks.Net), TRAIN, detector=ODIN())


# Models without a linear head, several classes per input, names ---------------------------------


def test_fit_falls_back_to_logits_with_a_warning_if_there_is_no_linear_head():
    model = networks.spread(seeded(networks.Prototypes))
    with pytest.warns(UserWarning, match="only logits are used, since no linear head was found"):
        guard = Guard.fit(model, TRAIN, calibration=CALIBRATION, labels=False)
    assert isinstance(guard.detector, DefaultEnsemble)
    assert {name for member in guard.detector.members for name in member.scores_from} == {"logits"}
    assert guard.head is False
    verdict = guard(pictures(9))
    with torch.no_grad():
        assert torch.equal(verdict.logits, model(pictures(9)))
    features = extract(model, [pictures(9)], head=False)
    torch.testing.assert_close(verdict.score, guard.detector.score(features), rtol=1e-5, atol=1e-5)
    with pytest.warns(UserWarning, match="only logits are used"):
        assert Guard.fit(model, iter(TRAIN), calibration=iter(CALIBRATION), detector="gen", labels=False).head is False
    with pytest.raises(HeadError, match="prototype"):
        Guard.fit(model, TRAIN, calibration=CALIBRATION, detector="dice(0.5)")


def test_fit_opens_each_loader_once():
    opened = []

    class Counted(list):
        def __iter__(self):
            opened.append(self)
            return super().__iter__()

    train, calibration = Counted(TRAIN), Counted(CALIBRATION)
    Guard.fit(seeded(networks.Net), train, calibration=calibration, detector="knn")
    assert [each is part for each, part in zip(opened, (train, calibration), strict=True)] == [True, True]


@pytest.mark.filterwarnings("ignore:.*returns probabilities")
def test_a_multi_label_model_has_a_default_of_its_own_and_refuses_a_softmax():
    model = networks.spread(seeded(networks.Sigmoid))
    guard = Guard.fit(model, TRAIN, calibration=CALIBRATION)
    assert guard.detector.detectors == ("joint_energy", "max_logit", "knn(k=5, bank=2000)")
    verdict = guard(pictures(9))
    with torch.no_grad():
        assert torch.equal(verdict.logits, model(pictures(9))), "what the model returned, bit for bit"
    features = extract(model, [pictures(9)])
    torch.testing.assert_close(verdict.score, guard.detector.score(features), rtol=1e-3, atol=1e-3)
    with pytest.raises(ArgumentError, match="msp takes classes as exclusive"):
        Guard.fit(model, TRAIN, calibration=CALIBRATION, detector="msp")
    with pytest.raises(ArgumentError, match="msp takes classes as exclusive"):
        Guard(model, MSP(), guard.threshold)(pictures(3))
    assert len(Guard(model, MSP(), guard.threshold, multilabel=False)(pictures(3)).score) == 3
    with pytest.raises(ArgumentError, match="energy takes classes as exclusive"):
        Guard(seeded(networks.Net), Energy(), guard.threshold, multilabel=True)(pictures(3))


NAMES = tuple("abcde")


def test_class_names_are_given_or_configured_and_kept_from_fit_to_load(tmp_path):
    model = seeded(networks.Net)
    assert Guard.fit(model, TRAIN, detector="energy").class_names == ()
    guard = Guard.fit(model, TRAIN, detector="energy", classes=NAMES)
    assert guard.class_names == NAMES
    guard.save(tmp_path / "g")
    assert load_guard(tmp_path / "g")[2]["class_names"] == list(NAMES)
    assert Guard.load(tmp_path / "g", model).class_names == NAMES
    model.config = SimpleNamespace(id2label=dict(enumerate("vwxyz")))
    assert Guard(model, guard.detector, guard.threshold).class_names == tuple("vwxyz")
    assert Guard.fit(model, TRAIN, detector="energy").class_names == tuple("vwxyz")
    assert Guard.load(tmp_path / "g", model).class_names == NAMES, "a saved guard keeps its own names"
    for use in (
        lambda: Guard.fit(model, TRAIN, detector="energy", classes=["a", "b"]),
        lambda: Guard(model, guard.detector, guard.threshold, classes=["a", "b"])(pictures(3)),
    ):
        with pytest.raises(ArgumentError, match="classes= has 2 names, but the model has 5 classes"):
            use()


@pytest.mark.filterwarnings("ignore:.*returns probabilities")
@pytest.mark.parametrize("multilabel", [None, False])
def test_what_a_guard_was_told_about_multilabel_is_kept(tmp_path, multilabel):
    model = networks.spread(seeded(networks.Sigmoid))
    Guard(model, MSP(), Threshold(value=0.0, id_rate=0.9, calibration_size=9), multilabel=multilabel).save(tmp_path)
    loaded = Guard.load(tmp_path, model)
    assert loaded.multilabel is multilabel
    if multilabel is False:
        assert len(loaded(pictures(3)).score) == 3


def test_a_batch_may_be_given_as_the_loader_gives_it():
    guard, _ = guarded()
    images, labels = pictures(6), torch.zeros(6, dtype=torch.long)
    want = guard(images)
    for batch in ((images, labels), [images, labels], {"image": images, "label": labels}):
        verdict = guard(batch)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(verdict[:-1], want[:-1], strict=True))
    assert torch.equal(guard(images=images).score, want.score), "by the name of the argument of forward"
    assert torch.equal(guard(images, labels=labels).score, want.score)


# Invalid arguments --------------------------------------------------------------------------------


def test_fit_takes_a_detector_as_text_and_checks_its_arguments_before_the_network_runs():
    runs = []
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, CLASSES))
    model.register_forward_hook(lambda *_: runs.append(1))
    for wrong in ({"id_rate": 95}, {"detector": "nonsense"}, {"detector": 3}):
        with pytest.raises(ArgumentError):
            Guard.fit(model, [torch.rand(200, 3, 8, 8)], **wrong)
    assert runs == []
    guard = Guard.fit(model, [torch.rand(200, 3, 8, 8)], detector="energy")
    assert guard.detector.spec == "energy"


def test_a_single_image_without_a_batch_dimension_is_refused():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).eval()
    guard = Guard.fit(model, [torch.rand(200, 3, 8, 8)], detector="energy")
    with pytest.raises(
        DataError, match=re.escape("one image (3, 8, 8) was given; add a batch dimension: guard(image[")
    ):
        guard(torch.rand(3, 8, 8))


def test_preprocessing_is_kept_from_fit_to_load(tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2)).eval()
    transform = Transform(8, 10, (0.5,) * 3, (0.25,) * 3)
    guard = Guard.fit(model, [torch.rand(200, 3, 8, 8)], detector="energy", preprocessing=transform)
    guard.save(tmp_path / "guard")
    assert Guard.load(tmp_path / "guard", model).preprocessing == transform.as_record()
    assert Transform.from_record(guard.preprocessing) == transform
    assert Guard(model, guard.detector, guard.threshold, preprocessing=guard.preprocessing).preprocessing is not None


def test_it_needs_images_and_embeddings():
    guard, _ = guarded()
    with pytest.raises(DataError, match="no images"):
        guard(pictures(4)[:0])
    with pytest.raises(ArgumentError, match="needs embeddings, which head=False leaves out"):
        Guard(guard.model, guard.detector, guard.threshold, head=False)


def test_detector_and_threshold_are_checked():
    model = seeded(networks.Net)
    with pytest.raises(NotFittedError, match="DICE"):
        Guard(model, DICE(p=0.5), Threshold(value=0.0, id_rate=0.9, calibration_size=9))
    with pytest.raises(ArgumentError, match=r"threshold=0\.5 is not a Threshold"):
        Guard(model, MSP(), 0.5)


def test_a_model_with_another_head_is_refused():
    """The detector would score the embeddings of one model with what it learned from another."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    guard = Guard.fit(model, [torch.rand(200, 3, 8, 8)], detector="dice(0.5)")
    retrained = copy.deepcopy(model)
    nn.init.normal_(retrained[3].weight)
    with pytest.raises(ShapeError, match="was fitted on features of another head"):
        Guard(retrained, guard.detector, guard.threshold)(torch.rand(2, 3, 8, 8))
    wider = nn.Sequential(nn.Flatten(), nn.Linear(192, 9), nn.ReLU(), nn.Linear(9, 3)).eval()
    with pytest.raises(ShapeError, match=re.escape("(width, classes) (8, 3), this model has (9, 3)")):
        Guard(wider, guard.detector, guard.threshold)(torch.rand(2, 3, 8, 8))
    assert len(Guard(copy.deepcopy(model), guard.detector, guard.threshold)(torch.rand(2, 3, 8, 8)).score) == 2


def test_a_model_without_a_linear_head_takes_logit_detectors_only():
    model = networks.spread(seeded(networks.Prototypes))
    features = extract(model, batched(ROWS, 10), head=False)
    guard = Guard(model, Energy(), calibrate(Energy().score(features), 0.9))
    torch.testing.assert_close(guard(pictures(ROWS)).score, Energy().score(features))
    dice = guarded()[0].detector
    with pytest.raises(HeadError, match="prototype"):
        Guard(model, dice, guard.threshold)(pictures(3))


# On disk ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["dice(0.5)", "react(90)+dice(0.5)+msp", "msp"])
def test_a_loaded_guard_gives_the_same_verdicts(tmp_path, spec):
    guard, _ = guarded(detector=parse(spec))
    guard.head = "fc"
    guard.save(tmp_path / "g")
    back = Guard.load(tmp_path / "g", seeded(networks.Net))
    assert back.threshold == guard.threshold
    assert back.head == "fc"
    assert back.detector.spec == guard.detector.spec
    for mine, theirs in zip(back(pictures(9))[:-1], guard(pictures(9))[:-1], strict=True):
        assert torch.equal(mine, theirs)


def test_a_change_to_any_file_is_detected(tmp_path):
    guard, _ = guarded()
    guard.save(tmp_path / "g")
    files = sorted(path for path in (tmp_path / "g").iterdir() if path.name != LOCK)
    assert len(files) == 2
    for file in files:
        whole = file.read_bytes()
        for content in (whole[:-3], whole[: len(whole) // 2] + b"#" + whole[len(whole) // 2 + 1 :], b""):
            file.write_bytes(content)
            with pytest.raises(FileError, match=re.escape(file.name)):
                Guard.load(tmp_path / "g", guard.model)
        file.unlink()
        with pytest.raises(FileError, match=re.escape(file.name)):
            Guard.load(tmp_path / "g", guard.model)
        file.write_bytes(whole)
    Guard.load(tmp_path / "g", guard.model)


def test_a_threshold_is_not_loaded_with_another_detector(tmp_path):
    """Also if somebody saves another detector into the guard's folder: each has its own files there."""
    guard, features = guarded()
    guard.save(tmp_path / "g")
    other = DICE(p=0.9).fit(features)
    save_detector(other, tmp_path / "g")
    loaded = Guard.load(tmp_path / "g", guard.model)
    assert torch.equal(loaded(pictures(5)).score, guard(pictures(5)).score)
    guard.save(tmp_path / "g")
    assert torch.equal(load_detector(tmp_path / "g").score(features), other.score(features))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_guard_in_half_precision_scores_in_single_precision(dtype):
    guard = Guard.fit(networks.spread(seeded(networks.Net)), TRAIN, calibration=CALIBRATION)
    want = guard(pictures(40))
    halved = guard.to(dtype)
    verdict = halved(pictures(40).to(dtype))
    assert verdict.logits.dtype == dtype
    assert {buffer.dtype for buffer in halved.detector.buffers()} == {torch.float32, torch.int64}
    assert verdict.score.dtype == torch.float32
    assert (verdict.is_id == want.is_id).float().mean() > 0.9


@pytest.mark.parametrize("spec", [None, "energy", "knn"])
def test_a_calibration_set_that_cannot_set_a_threshold_is_refused(spec):
    model, train = seeded(networks.Net), list(pictures(200).split(50))
    held_out = pictures(100, seed=3)
    with pytest.raises(DataError, match="the calibration set is unlike the training set"):
        Guard.fit(model, train, calibration=[255 * held_out], detector=spec)
    with pytest.raises(ArgumentError, match="same loader as train"):
        Guard.fit(model, train, calibration=train, detector=spec)
    with pytest.raises(DataError, match="same rows as the training set"):
        Guard.fit(model, train, calibration=train[::-1], detector=spec)
    assert Guard.fit(model, train, calibration=[held_out], detector=spec).threshold.calibration_size == 100


def test_embeddings_alone_are_guarded_saved_exported_and_opened(tmp_path):
    """Of a scikit-learn classifier, say: its last layer is the model."""
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(900, 6)) + 4 * np.eye(6)[generator.integers(0, 3, 900)]
    head = Head(generator.normal(size=(3, 6)), generator.normal(size=3))
    train, held_out, new = (torch.from_numpy(part).float() for part in np.split(rows, 3))
    guard = Guard.fit(head.as_model(), [train], calibration=[held_out], classes=["a", "b", "c"], multilabel=False)
    both = torch.cat([new, 50 * new[:10]])
    verdict = guard(both)
    torch.testing.assert_close(verdict.logits[:300], head(new.double()).float(), rtol=1e-4, atol=1e-4)
    assert verdict.is_id[:300].float().mean() > 0.9
    assert not verdict.is_id[300:].any()
    guard.save(tmp_path / "guard")
    assert torch.equal(Guard.load(tmp_path / "guard", head.as_model())(both).is_id, verdict.is_id)
    exported = guard.export(tmp_path / "guard.zip")
    assert exported(both.numpy()).is_id.tolist() == verdict.is_id.tolist()
