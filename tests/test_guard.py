"""``Guard``: the model's own answer untouched, one pass, and nothing strange ever called in-distribution."""

import json
import re

import networks
import pytest
import torch
from networks import CLASSES, WIDTH, batched, one_thread, pictures, seeded  # noqa: F401
from test_extraction import portrait
from torch import nn

from oodles.calibration import Threshold, calibrate
from oodles.detectors import DICE, MSP, Energy, ReAct, parse
from oodles.errors import ArgumentError, FileError, HeadError, NotFittedError, ShapeError
from oodles.extraction import extract
from oodles.files import write_record
from oodles.guard import Guard, Verdict

ROWS = 40


def guarded(make=networks.Net, detector=None, *, id_rate=0.9):
    model = seeded(make)
    features = extract(model, batched(ROWS, 10))
    detector = (detector or DICE(p=0.5)).fit(features)
    return Guard(model, detector, calibrate(detector.score(features), id_rate)), features


# What it answers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["Net", "ConvBeforePool", "Tied", "Matmul", "Scaled", "TwoHeads", "ReturnsDict", "Transformer"]
)
@pytest.mark.parametrize("spec", ["dice(0.5)", "react(90)+dice(0.5)+msp", "msp", "energy"])
def test_the_verdict_is_the_models_answer_and_the_detectors_score(name, spec):
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


def test_the_label_is_the_dense_networks_and_not_the_sparse_ones():
    guard, features = guarded(lambda: networks.spread(networks.Net()), DICE(p=0.9))
    sparse = torch.nn.functional.linear(features.embedding, guard.detector.weight_, guard.detector.bias_)
    assert not torch.equal(sparse.argmax(dim=1), features.logits.argmax(dim=1)), "the test can tell them apart"
    assert torch.equal(guard(pictures(ROWS)).label, features.logits.argmax(dim=1))


def test_about_the_asked_share_of_the_calibration_images_is_accepted():
    guard, _ = guarded(id_rate=0.75)
    accepted = guard(pictures(ROWS)).is_id
    assert 0.75 * ROWS <= int(accepted.sum()) < ROWS


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
    assert torch.equal(verdict.is_id[others], plain.is_id[others]), "its neighbours are judged as without it"


@pytest.mark.parametrize("spec", ["energy", "max_logit", "msp", "entropy", "dice(0.5)", "react(90)+dice(0.5)"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nor_is_one_whose_infinity_reaches_the_logits(spec, value):
    # no batch norm or second convolution on the way to turn inf - inf into NaN: the logits are +inf and -inf,
    # their energy is +inf, and a clipped embedding is finite again
    def flat():
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, CLASSES))

    guard, _ = guarded(flat, parse(spec))
    images = pictures(3, seed=3)
    images[1, 0, 0, 0] = value
    assert not bool(guard(images).is_id[1])


@pytest.mark.filterwarnings("ignore:.*returns probabilities")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_a_strange_first_image_does_not_spoil_the_guard_for_the_rest(value):
    # the head is looked for with the first batch, so what is in it must not decide what is found
    def flat():
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, CLASSES))

    guard, _ = guarded(flat)
    wanted = guarded(flat)[0](pictures(5, seed=3))
    images = pictures(3, seed=3)
    images[1, 0, 0, 0] = value
    guard(images)
    assert torch.equal(guard(pictures(5, seed=3)).score, wanted.score)


def test_a_batch_of_nothing_but_nan_is_judged_too():
    for make in (networks.Net, networks.Scaled):
        guard, _ = guarded(make)
        assert not guard(torch.full((3, 3, 8, 8), float("nan"))).is_id.any()


def test_probabilities_as_output_are_scored_by_the_logits_before_them():
    # the threshold comes from features, which hold the logits before the softmax: so must the score
    images = pictures(9, seed=5)

    def judged(spec):
        guard, _ = guarded(networks.Softmax, parse(spec))
        return guard, guard(images), guard.detector.score(extract(guard.model, [images]))

    for spec in ("dice(0.5)", "msp", "energy"):
        with pytest.warns(UserWarning, match="returns probabilities"):
            guard, verdict, wanted = judged(spec)
        with torch.no_grad():
            assert torch.equal(verdict.logits, guard.model(images))
        torch.testing.assert_close(verdict.score, wanted, rtol=1e-5, atol=1e-5)


# How it behaves ---------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["dice(0.5)", "msp"])
def test_one_forward_pass_per_batch(spec):
    guard, _ = guarded(networks.Tied, parse(spec))
    guard(pictures(4))
    for rows in (1, 3, 8):
        before = guard.model.body.calls
        guard(pictures(rows))
        assert guard.model.body.calls == before + 1


def test_it_stays_in_eval_mode_and_leaves_nothing_behind():
    guard, _ = guarded()
    assert guard.train() is guard
    assert not any(module.training for module in guard.modules())
    before = portrait(guard.model)
    statistics = guard.model.body.bn1.running_mean.clone()
    guard(pictures(4))
    with pytest.raises(RuntimeError):
        guard(torch.zeros(2, 7, 8, 8))
    assert portrait(guard.model) == before
    assert torch.equal(guard.model.body.bn1.running_mean, statistics)


def test_it_judges_in_eval_mode_even_while_the_model_is_being_trained_elsewhere():
    guard, _ = guarded()
    calm = guard(pictures(4))
    guard.model.train()
    statistics = guard.model.body.bn1.running_mean.clone()
    assert torch.equal(guard(pictures(4)).logits, calm.logits)
    assert torch.equal(guard.model.body.bn1.running_mean, statistics)


def test_nothing_carries_gradients():
    guard, _ = guarded()
    verdict = guard(pictures(4).requires_grad_())
    assert not verdict.logits.requires_grad
    assert not verdict.score.requires_grad


def test_a_row_does_not_depend_on_its_neighbours():
    guard, _ = guarded()
    images = pictures(8, seed=4)
    whole = guard(images)
    for row in range(8):
        one = guard(images[row : row + 1])
        torch.testing.assert_close(one.score[0], whole.score[row], rtol=1e-5, atol=1e-6)
        assert one.label[0] == whole.label[row]


# What it refuses --------------------------------------------------------------------------------


def test_what_it_is_made_of_is_checked():
    model = seeded(networks.Net)
    with pytest.raises(NotFittedError, match="DICE"):
        Guard(model, DICE(p=0.5), Threshold(value=0.0, id_rate=0.9, held_out=9))
    with pytest.raises(ArgumentError, match=r"threshold=0\.5 is no Threshold"):
        Guard(model, MSP(), 0.5)


def test_a_detector_of_another_width_is_refused():
    guard, _ = guarded()
    other = Guard(seeded(networks.DenseNetLike), guard.detector, guard.threshold)
    message = re.escape(f"{(WIDTH, CLASSES)}, this model has {(16, CLASSES)}")
    with pytest.raises(ShapeError, match=message):
        other(pictures(3))


def test_a_model_without_a_linear_head_takes_logit_detectors_only():
    model = networks.spread(seeded(networks.Prototypes))
    features = extract(model, batched(ROWS, 10), layer=False)
    guard = Guard(model, Energy(), calibrate(Energy().score(features), 0.9))
    torch.testing.assert_close(guard(pictures(ROWS)).score, Energy().score(features))
    dice = guarded()[0].detector
    with pytest.raises(HeadError, match="prototype"):
        Guard(model, dice, guard.threshold)(pictures(3))


def test_layer_names_the_head():
    guard, _ = guarded()
    named = Guard(guard.model, guard.detector, guard.threshold, layer="fc")
    assert torch.equal(named(pictures(4)).score, guard(pictures(4)).score)
    with pytest.raises(ArgumentError, match="names no module"):
        Guard(guard.model, guard.detector, guard.threshold, layer="nowhere")(pictures(4))


# On disk ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["dice(0.5)", "react(90)+dice(0.5)+msp", "msp"])
def test_saved_and_loaded_it_answers_the_same(tmp_path, spec):
    guard, _ = guarded(detector=parse(spec))
    guard.layer = "fc"
    guard.save(tmp_path / "g")
    back = Guard.load(tmp_path / "g", seeded(networks.Net))
    assert back.threshold == guard.threshold
    assert back.layer == "fc"
    assert back.detector.spec == guard.detector.spec
    for mine, theirs in zip(back(pictures(9)), guard(pictures(9)), strict=True):
        assert torch.equal(mine, theirs)


def test_saving_again_replaces_the_old_one_and_leaves_no_litter(tmp_path):
    first, second = guarded()[0], guarded(detector=ReAct(percentile=80))[0]
    first.save(tmp_path / "g")
    second.save(tmp_path / "g")
    assert Guard.load(tmp_path / "g", second.model).detector.spec == second.detector.spec
    assert len(list((tmp_path / "g").iterdir())) == 3


def test_it_is_put_back_on_its_own_model_only(tmp_path):
    guard, _ = guarded()
    guard.save(tmp_path / "g")
    with pytest.raises(FileError, match="guards another model"):
        Guard.load(tmp_path / "g", seeded(networks.Net, seed=1))
    with torch.no_grad():
        guard.model.body.conv1.bias[0] += 1e-6
    with pytest.raises(FileError, match="guards another model"):
        Guard.load(tmp_path / "g", guard.model)


def test_tampering_with_any_file_is_noticed(tmp_path):
    guard, _ = guarded()
    guard.save(tmp_path / "g")
    files = sorted((tmp_path / "g").iterdir())
    assert len(files) == 3
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


def test_a_looser_threshold_written_by_hand_is_noticed(tmp_path):
    guard, _ = guarded()
    guard.save(tmp_path / "g")
    record = tmp_path / "g" / "guard.json"
    content = json.loads(record.read_text())
    content["threshold"]["value"] = -1e9
    record.write_text(json.dumps(content))
    with pytest.raises(FileError, match="seal"):
        Guard.load(tmp_path / "g", guard.model)


def test_files_elsewhere_links_and_newer_records_are_refused(tmp_path):
    guard, _ = guarded()
    guard.save(tmp_path / "g")
    detector = tmp_path / "g" / "detector.json"
    record = json.loads(detector.read_text())
    record.pop("seal")
    (tensors,) = (tmp_path / "g").glob("*.safetensors")
    write_record(detector, {**record, "tensors": {**record["tensors"], "file": "../" + tensors.name}})
    with pytest.raises(FileError, match="outside itself"):
        Guard.load(tmp_path / "g", guard.model)
    write_record(detector, {**record, "schema": 99})
    with pytest.raises(FileError, match="schema 99"):
        Guard.load(tmp_path / "g", guard.model)
    write_record(detector, record)
    tensors.rename(tmp_path / "moved")
    tensors.symlink_to(tmp_path / "moved")
    with pytest.raises(FileError, match="symbolic link"):
        Guard.load(tmp_path / "g", guard.model)
