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
    detector, threshold, record = load_guard(fitted / "guard")
    assert record["class_names"] == ["blue", "red"]
    test = Features.load(fitted / "test")
    assert detector.spec == "dice(0.5)+energy"
    assert threshold == oodles.calibrate(oodles.DICE(p=0.5).fit(Features.load(fitted / "train")).score(test), 0.95)
    guard = oodles.Guard.load(fitted / "guard", network(workspace))
    assert guard.class_names == ("blue", "red")
    (images,) = loader(workspace / "test", labels=False)
    torch.testing.assert_close(guard(images).score, detector.score(test), rtol=1e-5, atol=1e-5)


def test_without_a_calibration_set_a_fifth_of_the_rows_is_held_out(fitted, succeeded, tmp_path):
    _, err = succeeded("fit", fitted / "train", "--out", tmp_path / "g", "--id-rate", "0.8")
    assert "a fifth of the training rows sets the threshold" in err
    detector, threshold, _ = load_guard(tmp_path / "g")
    assert detector.spec == oodles.default_detector().spec
    assert (threshold.id_rate, threshold.calibration_size) == (0.8, 24)


def test_a_detector_of_the_users_own(fitted, workspace, succeeded, tmp_path):
    (workspace / "own_detector_of_the_cli_tests.py").write_text(textwrap.dedent(OWN_DETECTOR))
    spec = "own_detector_of_the_cli_tests:FirstLogit"
    succeeded("fit", fitted / "train", "--detector", spec, "--out", tmp_path / "g")
    test = Features.load(fitted / "test")
    assert torch.equal(load_guard(tmp_path / "g")[0].score(test), test.logits[:, 0])


def test_warnings_are_printed_in_one_line(succeeded, tmp_path):
    example_features(200).save(tmp_path / "features")  # one unit is never active
    out, err = succeeded("fit", tmp_path / "features", "--detector", "mahalanobis", "--out", tmp_path / "g")
    assert out == ""
    (line,) = [line for line in err.splitlines() if line.startswith("warning ")]
    assert "1 of 24 directions do not vary within classes and are left out" in line


@pytest.mark.parametrize(
    ("train", "options", "message"),
    [
        ("train", ["--calibration", "nowhere"], "nowhere does not exist; give a folder written by"),
        ("train", ["--calibration", "other"], "other has features of another model than"),
        ("train", ["--calibration", "train"], "has the same rows as"),
        ("train", ["--calibration", "copied"], "has the same rows as"),
        ("train", ["--detector", "dice(2"], "'dice(2' is not a detector"),
        ("train", ["--detector", "odin", "--calibration", "test"], "has to be tuned"),
        ("test", [], "too small to split"),
    ],
)
def test_what_cannot_be_fitted_is_refused(fitted, refused, tmp_path, monkeypatch, train, options, message):
    for name, source in (("train", "train"), ("test", "test"), ("copied", "train")):
        shutil.copytree(fitted / source, tmp_path / name)
    example_features(80, 12, 2).save(tmp_path / "other")
    monkeypatch.chdir(tmp_path)
    assert message in refused("fit", train, *options, "--out", "g", notices=not options)
    assert not (tmp_path / "g").exists()


def test_rows_far_longer_than_the_others(succeeded, tmp_path):
    plain = example_features(280)
    embedding = plain.embedding[:200].clone()
    embedding[11] *= 1e20
    Features(embedding, labels=plain.labels[:200], head=plain.head).save(tmp_path / "features")
    plain[200:].save(tmp_path / "held-out")
    arguments = ["fit", tmp_path / "features", "--calibration", tmp_path / "held-out", "--detector", "dice(0.5)"]
    _, err = succeeded(*arguments, "--out", tmp_path / "g")
    assert err.count("1 of 200 training rows have norms of more than 100 times") == 1


def test_a_guard_is_only_replaced_with_force(fitted, succeeded, refused, tmp_path):
    command = ("fit", fitted / "train", "--calibration", fitted / "test", "--out", tmp_path / "g")
    succeeded(*command, "--detector", "energy")
    before = (tmp_path / "g" / "guard.json").read_bytes()
    assert "already holds a guard; give another folder, or --force" in refused(*command, notices=False)
    assert (tmp_path / "g" / "guard.json").read_bytes() == before
    succeeded(*command, "--detector", "msp", "--force")
    assert (tmp_path / "g" / "guard.json").read_bytes() != before


def test_a_folder_with_other_files_and_a_file_are_left_alone(fitted, refused, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    command = ("fit", fitted / "train", "--calibration", fitted / "test", "--out")
    for out, message in ((tmp_path, "holds other files (notes.txt, ...)"), (tmp_path / "notes.txt", "is a file")):
        assert message in refused(*command, out, notices=False)
        assert message in refused(*command, out, "--force", notices=False)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_signed_guard_is_used_with_its_key(fitted, succeeded, refused, tmp_path):
    (tmp_path / "key").write_bytes(b"k" * 32)
    (tmp_path / "other").write_bytes(b"o" * 32)
    guard, key, other = tmp_path / "g", ["--key", tmp_path / "key"], ["--key", tmp_path / "other"]
    succeeded("fit", fitted / "train", "--out", guard, "--detector", "energy", *key)
    succeeded("score", guard, fitted / "test", *key)
    for command in (["score", guard, fitted / "test"], ["threshold", guard, "--features", fitted / "test"]):
        assert "guard.json was signed with another key or altered afterwards" in refused(*command, *other)
    assert "guard.json is signed; give its key" in refused("threshold", guard, "--features", fitted / "test")
    succeeded("threshold", guard, "--features", fitted / "test", *key)
    succeeded("score", guard, fitted / "test", *key)
    assert "is not signed" in refused("score", fitted / "guard", fitted / "test", *key)
    (tmp_path / "key").write_bytes(b"short")
    assert "a key of 5 bytes can be guessed" in refused("fit", fitted / "train", "--out", tmp_path / "h", *key)


def test_with_the_model_the_guard_keeps_its_answers_to_noise(fitted, succeeded, refused, workspace, tmp_path):
    command = ["fit", fitted / "train", "--calibration", fitted / "test", "--detector", "dice(0.5)"]
    succeeded(*command, "--out", tmp_path / "g", "--model", MODEL, "--checkpoint", "one.pt")
    kept, plain = load_guard(tmp_path / "g")[2], load_guard(fitted / "guard")[2]
    assert kept["self_test"] is not None
    assert plain["self_test"] is None
    for name in ("preprocessing", "class_names", "head"):
        assert kept[name] == plain[name]
    assert oodles.Guard.load(tmp_path / "g", network(workspace)).threshold == load_guard(fitted / "guard")[1]
    other = [*command, "--out", tmp_path / "h", "--model", MODEL, "--checkpoint", "two.pt"]
    assert "has features of another model than --model" in refused(*other)


def features_of(kind):
    """Features of one kind of model: multi-label, or without embeddings."""
    plain = example_features(300)
    if kind == "logits":
        return Features(logits=plain.logits)
    return Features(plain.embedding, logits=plain.logits, head=plain.head, multilabel=True)


@pytest.mark.parametrize("kind", ["multilabel", "logits"])
def test_the_default_suits_the_features(kind, succeeded, tmp_path):
    features_of(kind).save(tmp_path / "features")
    succeeded("fit", tmp_path / "features", "--out", tmp_path / "g")
    detector, _, record = load_guard(tmp_path / "g")
    assert detector.spec == oodles.default_detector(features_of(kind)).spec
    assert record["multilabel"] is (kind == "multilabel")


def test_a_guard_of_a_multi_label_model_reports_sigmoid_probabilities(fitted, workspace, succeeded, tmp_path):
    net = network(workspace)
    features = oodles.extract(net, loader(workspace / "train", labels=False), multilabel=True, store=tmp_path / "store")
    assert features.multilabel
    succeeded("fit", tmp_path / "store", "--detector", "joint_energy", "--out", tmp_path / "g")
    (images,) = loader(workspace / "test", labels=False)
    verdict = oodles.Guard.load(tmp_path / "g", net)(images)
    torch.testing.assert_close(verdict.probability, verdict.logits.amax(dim=1).sigmoid())
