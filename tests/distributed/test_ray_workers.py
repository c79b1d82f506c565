"""What workers do with a batch of rows, without Ray."""

import pyarrow as pa
import pytest
import torch
from PIL import Image
from support.images import PLAIN, write_image
from support.networks import CLASSES, Net
from torch import nn

import oodles
from oodles.columns import LAYER
from oodles.data.loaders import ImageLoader
from oodles.data.readers import open_images
from oodles.deploy.opening import open_guard
from oodles.deploy.results.rows import COLUMNS
from oodles.detectors import parse
from oodles.distributed.ray_workers import NOT_FINITE, Extractor, Scorer, describe, merge, observe
from oodles.errors import ArgumentError, DataError, ShapeError
from oodles.network.extraction import extract

IMAGES = 9
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


class NaNForBlack(Net):
    def forward(self, images):
        return super().forward(torch.where(images.amax(dim=(1, 2, 3), keepdim=True) > 0, images, torch.nan))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return NaNForBlack().eval()


@pytest.fixture
def images(tmp_path):
    """A folder of images and a table that names them, with a file that is not one in the middle."""
    for number in range(IMAGES):
        write_image(tmp_path / f"{number}.png", seed=number)
    paths = [str(tmp_path / f"{number}.png") for number in range(IMAGES)]
    paths.insert(4, str(tmp_path / "missing.png"))
    return tmp_path, pa.table({"path": paths})


def alone(model, folder, **options):
    return extract(model, ImageLoader(open_images(folder), PLAIN, labels=False), **options)


def extractor(model, *, layers=(), half=False):
    return Extractor(lambda: model, PLAIN, None, layers, 4, half)


def fitted_guard(model, folder, spec="react(90)+dice(0.5)"):
    features = alone(model, folder)
    detector = parse(spec).fit(features)
    threshold = oodles.calibrate(detector.score(features), 0.5)
    guard = oodles.Guard(model, detector, threshold, preprocessing=PLAIN, classes=list("abcdefgh"[:CLASSES]))
    guard.save(folder / "guard")
    return guard, lambda: open_guard(folder / "guard", model)


def test_features_of_paths_and_of_bytes_are_those_of_extract(model, images):
    folder, rows = images
    expected = alone(model, folder, layers=["body"])
    contents = [path.read_bytes() for path in sorted(folder.glob("*.png"))]
    contents.insert(4, None)
    in_memory = pa.table({"path": rows["path"], "bytes": contents})
    for given, problem in ((rows, "cannot be read (No such file or directory)"), (in_memory, "empty file")):
        table = extractor(model, layers=["body"])(given)
        assert table.column_names == ["path", "embedding", "logits", f"{LAYER}body", "error"]
        assert table["path"] == rows["path"]
        for name, column in (("embedding", expected.embedding), (f"{LAYER}body", expected.layers["body"])):
            values = table[name].to_pylist()
            assert values.pop(4) is None
            torch.testing.assert_close(torch.tensor(values), column, **CLOSE)
        errors = table["error"].to_pylist()
        assert errors.pop(4).endswith(problem)
        assert errors == [None] * IMAGES


def test_columns_have_the_same_types_whatever_is_in_a_batch(model, images):
    folder, rows = images
    Image.new("RGB", (8, 8)).save(folder / "black.png")
    work = extractor(model, half=True)
    good, bad = work(rows), work(pa.table({"path": [str(folder / "nowhere.png"), str(folder / "black.png")]}))
    assert good.schema == bad.schema
    assert good.schema.field("embedding").type == pa.list_(pa.float16())
    assert bad["embedding"].to_pylist() == bad["logits"].to_pylist() == [None, None]
    assert bad["error"].to_pylist()[1] == NOT_FINITE


def test_labels_stay_with_their_rows(model, images):
    _, rows = images
    labels = pa.array(range(IMAGES + 1))
    assert extractor(model)(rows.append_column("labels", labels))["labels"].to_pylist() == labels.to_pylist()


@pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")  # not all classes are there
@pytest.mark.parametrize("spec", ["react(90)+dice(0.5)", "mahalanobis", "knn(2)"])
def test_parts_of_a_fit_merge_to_the_whole(model, images, spec):
    folder, rows = images
    labels = torch.arange(IMAGES) % 2
    rows = rows.append_column("labels", pa.array([*labels[:4].tolist(), 0, *labels[4:].tolist()]))
    features = alone(model, folder)
    features = oodles.Features(features.embedding, head=features.head, labels=labels)
    whole = parse(spec).fit(features).score(features)
    stored, about = extractor(model)(rows), describe(lambda: model, PLAIN, None)
    parts = [observe(stored[start : start + 3], parse(spec), about)["part"][0] for start in (0, 3, 6, 9)]
    detector, count, bad, problem = merge(parts)
    assert (count, bad) == (IMAGES + 1, 1)
    assert problem.startswith(f"{folder / 'missing.png'}: ")
    torch.testing.assert_close(detector.finish().score(features), whole, **CLOSE)


def test_rows_without_features_add_nothing_to_a_fit(model, images):
    stored, about = extractor(model)(images[1]), describe(lambda: model, PLAIN, None)
    (nothing,) = observe(stored[4:5], parse("knn(1)"), about)["part"]
    assert (nothing.detector, nothing.rows, nothing.bad) == (None, 1, 1)
    (something,) = observe(stored[5:], parse("knn(1)"), about)["part"]
    assert merge([nothing, something]).detector is something.detector
    assert merge([nothing, nothing]).detector is None


def test_verdicts_on_images_and_on_their_features_are_those_of_the_guard(model, images):
    folder, rows = images
    guard, load = fitted_guard(model, folder)
    verdict = guard(next(iter(ImageLoader(open_images(folder), PLAIN, labels=False))))
    work = Scorer(load, 4)
    for given in (rows, extractor(model)(rows)):
        table = work(given)
        assert table.column_names == [*COLUMNS]
        *found, errors = (table[name].to_pylist() for name in table.column_names[1:])
        assert [column.pop(4) for column in found] == [None, None, None, None, None, False]
        assert errors.pop(4).endswith("cannot be read (No such file or directory)")
        assert errors == [None] * IMAGES
        labels, classes, chances, scores, p_values, accepted = found
        assert labels == verdict.label.tolist()
        assert classes == ["abcdefgh"[label] for label in labels]
        torch.testing.assert_close(torch.tensor(scores), verdict.score, **CLOSE)
        torch.testing.assert_close(torch.tensor(chances), verdict.logits.softmax(dim=1).amax(dim=1), **CLOSE)
        assert p_values == guard.threshold.p_values(scores).tolist()
        assert accepted == verdict.is_id.tolist()
        assert 0 < sum(accepted) < IMAGES


def test_an_input_for_which_the_network_gives_nan_is_never_in_distribution(model, images):
    folder, _ = images
    _, load = fitted_guard(model, folder, "energy")
    Image.new("RGB", (8, 8)).save(folder / "black.png")
    (row,) = Scorer(load, 4)(pa.table({"path": [str(folder / "black.png")]})).to_pylist()
    assert (row["score"], row["is_id"], row["error"]) == (None, False, NOT_FINITE)


def test_features_of_another_model_are_refused(model, images):
    folder, rows = images
    _, load = fitted_guard(model, folder)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        other = Net()
    features = extractor(other)(rows)
    with pytest.raises((ShapeError, DataError), match=r"same model|another head"):
        Scorer(load, 4)(features)


def test_what_a_worker_cannot_use(model, images):
    folder, rows = images
    with pytest.raises(DataError, match=r"has no column path, by which .* \(its columns: file\)"):
        extractor(model)(rows.rename_columns(["file"]))
    oodles.Guard(model, oodles.Energy(), oodles.calibrate(torch.arange(99.0))).save(folder / "guard")
    with pytest.raises(ArgumentError, match="does not record how images were preprocessed"):
        Scorer(lambda: open_guard(folder / "guard", model), 4)
    with pytest.raises(oodles.HeadError):
        extractor(nn.Sequential(Net(), nn.ReLU()))
