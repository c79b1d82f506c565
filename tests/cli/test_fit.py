import shutil
import textwrap

import pytest
import torch
from support.command_line import MODEL, loader, network

import oodles
from oodles.deploy.saving import load_guard
from oodles.features import Features
from oodles.testing import example_features

OWN_DETECTOR = """
    from oodles import Detector

    class FirstLogit(Detector):
        def forward(self, embedding, logits, *others):
            return logits[:, 0]
"""


def test_fit_writes_a_guard_for_that_model(fitted, workspace):
    detector, threshold, _ = load_guard(fitted / "guard")
    test = Features.load(fitted / "test")
    assert detector.spec == "dice(0.5)+energy"
    assert threshold == oodles.calibrate(oodles.DICE(p=0.5).fit(Features.load(fitted / "train")).score(test), 0.95)
    guard = oodles.Guard.load(fitted / "guard", network(workspace))
    (images,) = loader(workspace / "test", labels=False)
    torch.testing.assert_close(guard(images).score, detector.score(test), rtol=1e-5, atol=1e-5)


def test_the_guard_knows_the_names_of_the_classes(fitted, workspace):
    assert load_guard(fitted / "guard")[2]["class_names"] == ["blue", "red"]
    assert oodles.Guard.load(fitted / "guard", network(workspace)).class_names == ("blue", "red")


def test_without_a_calibration_set_a_fifth_of_the_rows_is_held_out(fitted, oodles_run, tmp_path):
    code, _, err = oodles_run("fit", fitted / "train", "--out", tmp_path / "g", "--id-rate", "0.8")
    assert code == 0, err
    assert "a fifth of the training rows sets the threshold" in err
    detector, threshold, _ = load_guard(tmp_path / "g")
    assert detector.spec == oodles.default_detector().spec
    assert (threshold.id_rate, threshold.calibration_size) == (0.8, 24)


def test_a_detector_of_the_users_own(fitted, workspace, oodles_run, tmp_path):
    (workspace / "own_detector_of_the_cli_tests.py").write_text(textwrap.dedent(OWN_DETECTOR))
    spec = "own_detector_of_the_cli_tests:FirstLogit"
    code, _, err = oodles_run("fit", fitted / "train", "--detector", spec, "--out", tmp_path / "g")
    assert code == 0, err
    detector, _, _ = load_guard(tmp_path / "g")
    test = Features.load(fitted / "test")
    assert torch.equal(detector.score(test), test.logits[:, 0])


def test_warnings_are_printed_in_one_line(oodles_run, tmp_path):
    example_features(200).save(tmp_path / "features")  # one unit is never active
    code, out, err = oodles_run("fit", tmp_path / "features", "--detector", "mahalanobis", "--out", tmp_path / "g")
    assert code == 0, err
    assert out == ""
    (line,) = [line for line in err.splitlines() if line.startswith("warning ")]
    assert "1 of 24 directions do not vary within classes and are left out" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "nowhere", "--out", "g"], "nowhere does not exist"),
        (["fit", "train", "--out", "g"], "manifest.json does not exist"),
        (["fit", "train/red/000.png", "--out", "g"], "000.png is a file; give a folder with features"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(refused, arguments, message):
    assert message in refused(*arguments, notices=False)


def test_a_mistyped_calibration_set_and_a_mistyped_detector(fitted, refused):
    fit = ["fit", fitted / "train", "--out", "g"]
    assert "nowhere does not exist; give a folder with features" in refused(*fit, "--calibration", "nowhere")
    assert "'dice(2' is not a detector" in refused(*fit, "--detector", "dice(2", notices=False)


def test_too_few_rows_to_hold_any_out(fitted, refused, tmp_path):
    assert "too small to split" in refused("fit", fitted / "test", "--out", tmp_path / "g")
    assert not (tmp_path / "g").exists()


def test_a_calibration_set_of_another_model(fitted, refused, tmp_path):
    example_features(80, 12, 2).save(tmp_path / "other")
    line = refused("fit", fitted / "train", "--calibration", tmp_path / "other", "--out", tmp_path / "g")
    assert "other has features of another model than" in line
    assert not (tmp_path / "g").exists()


def test_a_detector_that_has_to_be_tuned_on_images(fitted, refused, tmp_path):
    line = refused("fit", fitted / "train", "--detector", "odin", "--out", tmp_path / "g")
    assert "has to be tuned" in line
    assert not (tmp_path / "g").exists()


def test_the_rows_that_were_fitted_on_are_not_a_calibration_set(fitted, refused, tmp_path):
    copied = tmp_path / "copied"
    shutil.copytree(fitted / "train", copied)
    for calibration in (fitted / "train", copied):
        line = refused("fit", fitted / "train", "--calibration", calibration, "--out", tmp_path / "g", notices=False)
        assert "has the same rows as" in line
    assert not (tmp_path / "g").exists()


def test_rows_far_longer_than_the_others(oodles_run, tmp_path):
    plain = example_features(200)
    embedding = plain.embedding.clone()
    embedding[11] *= 1e20
    Features(embedding, labels=plain.labels, head=plain.head).save(tmp_path / "features")
    plain[:80].save(tmp_path / "held-out")
    arguments = ["fit", tmp_path / "features", "--calibration", tmp_path / "held-out", "--detector", "dice(0.5)"]
    code, _, err = oodles_run(*arguments, "--out", tmp_path / "g")
    assert (code, err.count("1 of 200 training rows have norms of more than 100 times")) == (0, 1), err


def test_a_guard_is_only_replaced_with_force(fitted, oodles_run, refused, tmp_path):
    command = ("fit", fitted / "train", "--calibration", fitted / "test", "--out", tmp_path / "g")
    assert oodles_run(*command, "--detector", "energy")[0] == 0
    before = (tmp_path / "g" / "guard.json").read_bytes()
    assert "already holds a guard; give another folder, or --force" in refused(*command, notices=False)
    assert (tmp_path / "g" / "guard.json").read_bytes() == before
    assert oodles_run(*command, "--detector", "msp", "--force")[0] == 0
    assert (tmp_path / "g" / "guard.json").read_bytes() != before


def test_a_folder_with_other_files_and_a_file_are_left_alone(fitted, refused, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    command = ("fit", fitted / "train", "--calibration", fitted / "test", "--out")
    for out, message in ((tmp_path, "holds other files (notes.txt, ...)"), (tmp_path / "notes.txt", "is a file")):
        assert message in refused(*command, out, notices=False)
        assert message in refused(*command, out, "--force", notices=False)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_impossible_rate_is_found_before_anything_is_read(refused, tmp_path):
    line = refused("fit", tmp_path / "nowhere", "--out", tmp_path / "g", "--id-rate", "95", notices=False)
    assert "it is a fraction: 0.95, not 95" in line


def test_a_signed_guard_is_used_with_its_key(fitted, oodles_run, refused, tmp_path):
    (tmp_path / "key").write_bytes(b"k" * 32)
    (tmp_path / "other").write_bytes(b"o" * 32)
    guard, key, other = tmp_path / "g", ["--key", tmp_path / "key"], ["--key", tmp_path / "other"]
    code, _, err = oodles_run("fit", fitted / "train", "--out", guard, "--detector", "energy", *key)
    assert code == 0, err
    assert oodles_run("score", guard, fitted / "test", *key)[0] == 0
    for command in (["score", guard, fitted / "test"], ["threshold", guard, "--features", fitted / "test"]):
        assert "guard.json was signed with another key or altered afterwards" in refused(*command, *other)
    assert "guard.json is signed; give its key" in refused("threshold", guard, "--features", fitted / "test")
    assert oodles_run("threshold", guard, "--features", fitted / "test", *key)[0] == 0
    assert oodles_run("score", guard, fitted / "test", *key)[0] == 0
    assert "is not signed" in refused("score", fitted / "guard", fitted / "test", *key)
    (tmp_path / "key").write_bytes(b"short")
    assert "a key of 5 bytes can be guessed" in refused("fit", fitted / "train", "--out", tmp_path / "h", *key)


def test_with_the_model_the_guard_keeps_its_answers_to_noise(fitted, oodles_run, refused, workspace, tmp_path):
    command = ["fit", fitted / "train", "--calibration", fitted / "test", "--detector", "dice(0.5)"]
    code, _, err = oodles_run(*command, "--out", tmp_path / "g", "--model", MODEL, "--checkpoint", "one.pt")
    assert code == 0, err
    kept, plain = load_guard(tmp_path / "g")[2], load_guard(fitted / "guard")[2]
    assert kept["self_test"] is not None
    assert plain["self_test"] is None
    assert [kept[name] for name in ("preprocessing", "class_names", "head")] == [
        plain[name] for name in ("preprocessing", "class_names", "head")
    ]
    assert oodles.Guard.load(tmp_path / "g", network(workspace)).threshold == load_guard(fitted / "guard")[1]
    line = refused(*command, "--out", tmp_path / "h", "--model", MODEL, "--checkpoint", "two.pt")
    assert "has features of another model than --model" in line


def features_of(kind):
    """Features of one kind of model: multi-label, or without embeddings."""
    plain = example_features(300)
    if kind == "logits":
        return Features(logits=plain.logits)
    return Features(plain.embedding, logits=plain.logits, head=plain.head, multilabel=True)


@pytest.mark.parametrize("kind", ["multilabel", "logits"])
def test_the_default_suits_the_features(kind, oodles_run, tmp_path):
    features_of(kind).save(tmp_path / "features")
    code, _, err = oodles_run("fit", tmp_path / "features", "--out", tmp_path / "g")
    assert code == 0, err
    detector, _, record = load_guard(tmp_path / "g")
    assert detector.spec == oodles.default_detector(features_of(kind)).spec
    assert record["multilabel"] is (kind == "multilabel")


def test_a_guard_of_a_multi_label_model_reports_sigmoid_probabilities(fitted, workspace, oodles_run, tmp_path):
    net = network(workspace)
    features = oodles.extract(net, loader(workspace / "train", labels=False), multilabel=True, store=tmp_path / "store")
    assert features.multilabel
    code, _, err = oodles_run("fit", tmp_path / "store", "--detector", "joint_energy", "--out", tmp_path / "g")
    assert code == 0, err
    (images,) = loader(workspace / "test", labels=False)
    verdict, probability = oodles.Guard.load(tmp_path / "g", net).with_probability(images)
    torch.testing.assert_close(probability, verdict.logits.amax(dim=1).sigmoid())
