"""``Guard.export`` and ``Guard.open``: what is written, what is refused, and every way to give inputs."""

import io
import json
import zipfile
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from support import networks, torchvision_operators  # noqa: F401
from support.networks import Net, batched, one_thread, pictures, seeded, spread  # noqa: F401
from torch import nn

import oodles as ood
from oodles.data.loaders import normalise
from oodles.data.transforms import Transform
from oodles.deploy import export as exporting
from oodles.deploy.artefact import replace_threshold
from oodles.errors import ArgumentError, DataError, FileError
from oodles.guard import Guard

PLAIN = Transform(8, 10, (0.5, 0.4, 0.3), (0.25, 0.2, 0.3))
NAMES = ["ant", "bee", "cat", "dog", "<b>eel</b>"]


def prepared(rows, batch, seed):
    """Batches of images as ``PLAIN`` gives them."""
    pixels = torch.randint(0, 256, (rows, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return list(normalise(PLAIN, pixels).split(batch))


@pytest.fixture(scope="module")
def model():
    return spread(seeded(Net))


@pytest.fixture(scope="module")
def guard(model):
    train, calibration = prepared(200, 50, seed=1), prepared(150, 50, seed=2)
    options = {"detector": "dice(0.5)", "labels": False, "preprocessing": PLAIN, "classes": NAMES}
    return Guard.fit(model, train, calibration=calibration, **options)


@pytest.fixture(scope="module")
def file(guard, tmp_path_factory):
    path = tmp_path_factory.mktemp("exported") / "guard.zip"
    guard.export(path)
    return path


@pytest.fixture(scope="module")
def photographs():
    return load_sample_images().images


def eager(guard, image):
    return guard(normalise(PLAIN, torch.from_numpy(PLAIN(Image.fromarray(image)))[None]))


def test_the_record_says_what_the_graph_is(guard, file):
    with zipfile.ZipFile(file) as archive:
        record = json.loads(archive.read("guard.json"))
        assert sorted(archive.namelist()) == ["detector.safetensors", "guard.json", "guard.onnx"]
    assert record["class_names"] == NAMES
    assert record["preprocessing"] == PLAIN.as_record()
    assert record["inputs"] == [{"name": "pixels", "dtype": "uint8", "shape": [None, None, None, 3]}]
    assert record["spec"] == "dice(0.5)+energy"
    assert record["threshold"] == guard.threshold.as_record()
    calibration = ood.Guard.open(file).calibration
    assert record["threshold"]["calibration_size"] == sum(calibration["counts"]) == 150
    assert calibration["quantiles"][0] == guard.threshold.id_scores[0]
    assert record["agreement"]["rows"] == 64
    assert record["agreement"]["inputs"] == "given inputs"
    assert record["agreement"]["score"] < 1e-5


def test_a_photograph_has_one_score_whichever_way_it_comes(guard, file, photographs, tmp_path):
    exported = ood.Guard.open(file)
    for photograph in photographs:
        path = tmp_path / "photograph.png"
        Image.fromarray(photograph).save(path)
        want = eager(guard, photograph)
        ways = [path, str(path), path.read_bytes(), Image.open(path), photograph, [path], photograph[None]]
        for way in ways:
            verdict = exported(way)
            assert verdict.score == pytest.approx(want.score.numpy(), abs=1e-5)
            assert np.array_equal(verdict.is_id, want.is_id.numpy())
            assert np.array_equal(verdict.label, want.label.numpy())
            assert verdict.probability == pytest.approx(want.logits.softmax(dim=1).amax(dim=1).numpy(), abs=1e-5)
            assert verdict.p_value == pytest.approx(guard.threshold.p_values(want.score), abs=1e-6)


def test_onnxruntime_by_hand(guard, file, photographs):
    with zipfile.ZipFile(file) as archive:
        record = json.loads(archive.read("guard.json"))
        session = onnxruntime.InferenceSession(archive.read("guard.onnx"))
    names = [output.name for output in session.get_outputs()]
    for threshold, expected in ((record["threshold"]["value"], None), (-1e30, True), (1e30, False)):
        inputs = {"pixels": photographs[0][None], "threshold": np.array(threshold, np.float32)}
        answer = dict(zip(names, session.run(None, inputs), strict=True))
        want = eager(guard, photographs[0])
        assert answer["score"] == pytest.approx(want.score.numpy(), abs=1e-5)
        assert bool(answer["is_id"][0]) == (bool(want.is_id) if expected is None else expected)
    (default,) = session.run(["is_id"], {"pixels": photographs[0][None]})
    assert bool(default[0]) == bool(eager(guard, photographs[0]).is_id)


def test_many_images_of_many_sizes(guard, file, photographs):
    exported = ood.Guard.open(file, threads=1)
    sizes = [(8, 8), (10, 10), (9, 30), (100, 20), (640, 427), (1, 1)]
    images = [np.asarray(Image.fromarray(photographs[row % 2]).resize(size)) for row in range(30) for size in sizes]
    verdict = exported(images)
    assert len(verdict.score) == 180
    for row in (0, 63, 64, 100, 179):
        assert verdict.score[row] == pytest.approx(eager(guard, images[row]).score.item(), abs=1e-5)


def test_the_same_guard_gives_the_same_bytes(guard, file, tmp_path):
    again = tmp_path / "again.zip"
    assert guard.export(again).version == ood.Guard.open(file).version
    assert again.read_bytes() == file.read_bytes()


@pytest.mark.slow
def test_what_is_there_is_kept_unless_it_may_be_replaced(guard, file, tmp_path, monkeypatch):
    before = file.read_bytes()
    with pytest.raises(FileError, match="holds an exported guard"):
        guard.export(file)
    other = tmp_path / "thesis.zip"
    other.write_text("years of work")
    with pytest.raises(FileError, match=r"thesis.zip exists and is not an exported guard"):
        guard.export(other, overwrite=True)
    with pytest.raises(ArgumentError, match=r"thesis must end in .zip"):
        guard.export(tmp_path / "thesis")
    monkeypatch.setattr(exporting, "TOLERANCE", 0.0)
    with pytest.raises(ArgumentError, match="does not give the guard's answers"):
        guard.export(file, overwrite=True)
    with pytest.raises(ArgumentError, match=r"so nothing was written"):
        guard.export(tmp_path / "new.zip")
    assert before == file.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["thesis.zip"]
    assert other.read_text() == "years of work"
    monkeypatch.undo()
    guard.export(tmp_path / "new.zip")
    guard.export(tmp_path / "new.zip", overwrite=True)
    assert ood.Guard.open(tmp_path / "new.zip").threshold == guard.threshold


def test_another_decision_refuses_the_export(guard, tmp_path, monkeypatch):
    class Contrary(type(guard.threshold)):
        def is_id(self, scores):
            return ~super().is_id(scores)

    limit = guard.threshold
    contrary = Contrary(limit.value, limit.id_rate, limit.calibration_size, limit.id_scores)
    monkeypatch.setattr(guard, "threshold", contrary)
    with pytest.raises(ArgumentError, match="decides otherwise than the guard for 1 of 1 inputs"):
        guard.export(tmp_path / "guard.zip")
    assert not (tmp_path / "guard.zip").exists()


def test_the_threshold_can_be_changed_later(guard, file, photographs, tmp_path):
    path = tmp_path / "guard.zip"
    before = guard.export(path)
    replace_threshold(path, {"value": 1e30, "id_rate": 0.5, "calibration_size": 150})
    after = ood.Guard.open(path)
    assert after.threshold.value == 1e30
    assert after.version != before.version
    assert np.array_equal(after(photographs).score, before(photographs).score)
    assert not after(photographs).is_id.any()


def test_images_that_were_prepared_otherwise_are_noticed(guard, tmp_path):
    with pytest.raises(DataError, match="do not have the guard's preprocessing"):
        guard.export(tmp_path / "guard.zip", inputs=[pictures(8) * 50])
    with pytest.raises(DataError, match=r"gives images \(n, 3, 8, 8\), but the model was given \(4, 3, 9, 9\)"):
        guard.export(tmp_path / "guard.zip", inputs=[pictures(4, size=9)])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros((1, 8, 8, 3)), r"^pixels are uint8 \(n, height, width, 3\), got float64 \(1, 8, 8, 3\)"),
        (np.zeros((1, 3, 8, 8), np.uint8), r"got uint8 \(1, 3, 8, 8\); give values from 0 to 255 with the"),
        (np.zeros((8, 8), np.uint8), r"got uint8 \(1, 8, 8\)"),
        (np.zeros((0, 8, 8, 3), np.uint8), r"got uint8 \(0, 8, 8, 3\)"),
        ([], r"^the guard was given no images; give at least one$"),
        (7, r"^an image is a path, bytes, a Pillow image or a uint8 array, got int$"),
        (b"GIF", r"^not an image in a supported format"),
        ("missing.png", r"missing.png"),
        (Image.new("I;16", (8, 8)), r"^more than 8 bits per channel \(mode I;16\)"),
    ],
)
def test_what_is_no_image_is_refused_in_one_line(file, given, message):
    with pytest.raises(DataError, match=message) as caught:
        ood.Guard.open(file)(given)
    assert "\n" not in str(caught.value)


def test_options_are_checked(file):
    with pytest.raises(ArgumentError, match="onnxruntime has no CUDAExecutionProvider"):
        ood.Guard.open(file, device="cuda")
    with pytest.raises(ArgumentError, match="device='tpu' cannot be used here: onnxruntime has no tpu"):
        ood.Guard.open(file, device="tpu")
    with pytest.raises(ArgumentError, match=r"^threads=0 must be at least 1$"):
        ood.Guard.open(file, threads=0)
    with pytest.raises(FileError, match=r"nothing.zip does not exist"):
        ood.Guard.open(file.with_name("nothing.zip"))
    with pytest.raises(ArgumentError, match=r"^a guard of images is called with one argument"):
        ood.Guard.open(file)(1, 2)


def test_a_guard_that_was_loaded_is_tried_on_noise(guard, model, tmp_path):
    guard.save(tmp_path / "saved")
    exported = ood.Guard.load(tmp_path / "saved", model).export(tmp_path / "exported.zip")
    assert exported.record["agreement"]["inputs"] == "noise"
    assert exported.threshold.id_scores.tolist() == guard.threshold.id_scores.tolist()


# Networks ----------------------------------------------------------------------------------------

HEADS = [
    *(networks.ReturnsDict, networks.ConvBeforePool, networks.Matmul, networks.Addmm),
    *(networks.WeightNormed, networks.Scaled, networks.TwoHeads, networks.Softmax, networks.CosineSimilarity),
    *(networks.Transformer, networks.FunctionalTransformer, networks.Sigmoid),
]


@pytest.mark.slow
@pytest.mark.parametrize("make", HEADS)
@pytest.mark.filterwarnings("ignore:.*returns probabilities")
def test_heads_of_every_kind(make, tmp_path):
    network = seeded(make)
    guard = Guard.fit(network, batched(100, 50), detector="knn" if make is networks.Sigmoid else "dice(0.5)")
    exported = guard.export(tmp_path / "guard.zip")
    images = pictures(5, seed=9)
    verdict, want = exported(images.numpy()), guard(images)
    assert verdict.score == pytest.approx(want.score.numpy(), rel=1e-4, abs=1e-4)
    assert np.array_equal(verdict.label, want.label.numpy())
    assert verdict.logits == pytest.approx(want.logits.numpy(), abs=1e-4)
    assert exported.record["multilabel"] == (make is networks.Sigmoid)


class TwoInputs(nn.Module):
    """A table of numbers and one of categories; one logit."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.out = nn.Embedding(6, 4), nn.Linear(7, 5), nn.Linear(5, 1)

    def forward(self, numbers, *, category):
        return self.out(torch.relu(self.mix(torch.cat([numbers, self.embed(category)], dim=1))))


@pytest.mark.filterwarnings("ignore:.*has a single logit")
def test_several_inputs_by_position_and_by_name(tmp_path):
    generator = torch.Generator().manual_seed(0)
    numbers, category = torch.randn(80, 3, generator=generator), torch.randint(6, (80,), generator=generator)
    rows = {"numbers": numbers, "category": category}
    guard = Guard.fit(seeded(TwoInputs), [rows, rows], detector="energy", labels=False)
    exported = guard.export(tmp_path / "guard.zip")
    few = {name: value[:9] for name, value in rows.items()}
    want = guard(**few)
    arrays = {name: value.numpy() for name, value in few.items()}
    for verdict in (exported(**arrays), exported(arrays["numbers"], category=arrays["category"].tolist())):
        assert verdict.score == pytest.approx(want.score.numpy(), abs=1e-5)
        assert verdict.logits.shape == (9, 1)
        assert np.array_equal(verdict.label, (want.logits[:, 0] > 0).numpy())
    with pytest.raises(DataError, match=r"^numbers must be float32 \(any, 3\), got float64 \(9, 4\)$"):
        exported(np.zeros((9, 4)), arrays["category"])
    for whole in (np.ones((9, 3), np.uint8), np.ones((9, 3), bool), np.ones((9, 3), int).tolist()):
        with pytest.raises(DataError, match=r"^numbers must be float32 .*scale and normalise"):
            exported(whole, arrays["category"])
    with pytest.raises(DataError, match=r"need the same number of rows, at least one; got"):
        exported(arrays["numbers"], arrays["category"][:3])
    with pytest.raises(ArgumentError, match=r"^the guard takes numbers, category, each once; got numbers$"):
        exported(arrays["numbers"])


@pytest.mark.slow
def test_a_text_model_with_any_number_of_tokens(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(**sizes, vocab_size=50, num_labels=3)
    network = seeded(lambda: transformers.BertForSequenceClassification(config)).eval()

    def tokens(rows, length, seed):
        ids = torch.randint(50, (rows, length), generator=torch.Generator().manual_seed(seed))
        return {"input_ids": ids, "attention_mask": (torch.arange(length) < length - ids[:, :1] % 3).long()}

    guard = Guard.fit(network, [tokens(40, 12, seed) for seed in range(4)], detector="vim")
    exported = guard.export(tmp_path / "guard.zip")
    for rows, length in ((1, 12), (3, 5), (70, 20)):
        given = tokens(rows, length, seed=9)
        want = guard(**given)
        verdict = exported(**{name: value.numpy() for name, value in given.items()})
        assert verdict.score == pytest.approx(want.score.numpy(), rel=1e-4, abs=1e-4)


@pytest.mark.slow
def test_a_trained_text_model_with_the_default(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    config = transformers.BertConfig(**sizes, vocab_size=100, num_labels=4, max_position_embeddings=16)
    network = seeded(lambda: transformers.BertForSequenceClassification(config))
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (1800,), generator=generator)
    texts = torch.randint(4, 100, (1800, 12), generator=generator)
    texts[:, ::2] = 4 + labels[:, None] * 20 + torch.randint(20, (1800, 6), generator=generator)
    search = torch.optim.AdamW(network.parameters(), lr=1e-3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for _ in range(120):  # until it is certain of everything, and embeddings of a class are almost equal
            rows = torch.randint(1000, (64,), generator=generator)
            search.zero_grad()
            network(input_ids=texts[rows], labels=labels[rows]).loss.backward()
            search.step()
    batches = [{"input_ids": part} for part in torch.split(texts, 100)]
    guard = Guard.fit(network.eval(), batches[:10], calibration=batches[10:15])
    exported = guard.export(tmp_path / "guard.zip")
    given = torch.cat([texts[1500:], torch.full((5, 12), 3)])  # tokens that no text had
    ours, theirs = guard(input_ids=given), exported(input_ids=given.numpy())
    differ = ours.is_id.numpy() != theirs.is_id
    assert differ.mean() <= 0.01
    assert theirs.score == pytest.approx(ours.score.numpy(), rel=1e-2, abs=1e-2)


def test_scores_are_compared_by_their_ranks_if_their_digits_differ(guard):
    threshold = replace(guard.threshold, id_scores=np.linspace(0, 1, 1001))
    ours = np.array([0.1, 0.5, -3.0, np.nan])
    assert exporting._rank_gap(threshold, ours, ours + 1e-3) == pytest.approx(1e-3, abs=1e-5)
    assert exporting._rank_gap(threshold, ours, ours + 0.2) == pytest.approx(0.2, abs=2e-3)
    assert exporting._rank_gap(threshold, ours, ours[::-1]) == np.inf
    assert exporting._rank_gap(replace(threshold, id_scores=None), ours, ours) == np.inf


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*of the weights, not p")  # units of random networks may be dead
@pytest.mark.parametrize("name", ["resnet50", "vit"])
def test_networks_of_the_field(name, tmp_path):
    if name == "resnet50":
        torchvision = pytest.importorskip("torchvision")
        network = seeded(lambda: torchvision.models.resnet50(num_classes=7, width_per_group=4)).eval()
    else:
        timm = pytest.importorskip("timm")
        settings = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 24, "num_heads": 2, "num_classes": 7}
        network = seeded(lambda: timm.models.VisionTransformer(**settings)).eval()
    batches = [pictures(26, seed=seed, size=32) for seed in range(4)]
    guard = Guard.fit(network, batches, detector="dice(0.5)", labels=False)
    exported = guard.export(tmp_path / "guard.zip")
    images = pictures(3, seed=9, size=32)
    assert exported(images.numpy()).score == pytest.approx(guard(images).score.numpy(), rel=1e-4)


def test_a_network_that_cannot_be_traced_is_refused_in_one_line(tmp_path):
    class Branches(Net):
        def forward(self, images):
            return super().forward(images) if float(images.sum()) > -1e9 else super().forward(-images)

    guard = Guard.fit(seeded(Branches), batched(120, 30), detector="energy")
    with pytest.raises(ArgumentError, match=r"^the guard cannot be converted to ONNX: ") as caught:
        guard.export(tmp_path / "guard.zip")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_bytes_and_streams_of_every_mode(file, photographs):
    exported = ood.Guard.open(file)
    for mode in ("L", "RGBA", "P", "CMYK"):
        buffer = io.BytesIO()
        image = Image.fromarray(photographs[0]).convert(mode)
        image.save(buffer, "TIFF" if mode == "CMYK" else "PNG")
        assert np.isfinite(exported(buffer.getvalue()).score).all()
