"""Guards of ONNX files: the detector appended to the user's own graph, and the verdicts of all four ways."""

import io
import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch
from support import onnx_files as made
from support.serving import serving
from typer.testing import CliRunner

import oodles as ood
from oodles import cli
from oodles.data.transforms import FileBytes
from oodles.deploy.artefact import GRAPH, read_artefact
from oodles.errors import ArgumentError, DataError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*(probabilities|single logit)")]


WITHOUT_TORCH = """
import json, sys
sys.modules["torch"] = None
import oodles
print(json.dumps(oodles.Guard.open(sys.argv[1])(sys.argv[2:]).is_id.tolist()))
"""


def fitted(path, **options):
    loader = made.batches((300, 100))
    return ood.Guard.fit(path, loader[:1], calibration=loader[1:], **options)


def run(*arguments):
    result = CliRunner().invoke(cli.app, [str(each) for each in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def graph_of(exported):
    return onnx.load_from_string(read_artefact(exported.path).contents[GRAPH]).graph


@pytest.mark.parametrize("opset", [13, 18, 21])
@pytest.mark.parametrize("kind", ["logits", "softmax in five nodes", "two heads averaged", "scikit-learn"])
def test_an_exported_guard_gives_the_files_own_output_and_the_guards_verdict(kind, opset, tmp_path):
    text = made.GRAPHS[kind] if opset < 18 else made.GRAPHS[kind].replace(" <axes = [1]> (z)", " (z, axis)")
    if "axis" in text:
        text = f"axis = Constant <value_ints = [1]> ()  {text}"
    model = made.model(text, opset=opset)
    onnx.save(model, path := tmp_path / "m.onnx")
    guard, far = fitted(path), torch.cat([made.batches((70,))[0], 9 * made.batches((30,))[0]])
    exported = guard.export(tmp_path / "guard.zip")
    ours, theirs = guard(far), exported(far.numpy())
    assert np.array_equal(theirs.logits, guard.model(far).numpy())
    assert np.array_equal(theirs.is_id, ours.is_id.numpy())
    assert 0 < theirs.is_id.sum() < len(far)
    assert len(exported.explain(far.numpy()[:2])) == 2
    if opset >= 18:
        nodes = [node.SerializeToString() for node in graph_of(exported).node]
        assert nodes[: len(model.graph.node)] == [node.SerializeToString() for node in model.graph.node]


def test_tensors_that_are_called_like_outputs_of_a_guard_are_renamed(tmp_path):
    text = made.GRAPHS["logits"].replace("h", "score").replace("z", "label")
    path = made.write(text.replace(" y = ", " logits = "), tmp_path / "m.onnx", output="logits", opset=18)
    exported = fitted(path).export(tmp_path / "guard.zip")
    names = {name for node in graph_of(exported).node for name in node.output}
    assert {"model/score", "model/label", "model/logits"} <= names
    reserved = made.model(made.GRAPHS["logits"].replace("(x", "(threshold"))
    reserved.graph.input[0].name = "threshold"
    onnx.save(reserved, tmp_path / "input.onnx")
    with pytest.raises(ArgumentError, match="an input called threshold"):
        fitted(tmp_path / "input.onnx").export(tmp_path / "other.zip")


def test_a_fixed_number_of_rows_is_made_free(tmp_path):
    model = made.model(made.GRAPHS["logits"])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, path := tmp_path / "m.onnx")
    guard = fitted(path)
    exported = guard.export(tmp_path / "guard.zip")
    batch = made.batches((70,))[0]
    assert np.array_equal(exported(batch.numpy()).is_id, guard(batch).is_id.numpy())


@pytest.fixture
def byte_files(tmp_path):
    """Texts and numbers in class folders, and a network on the first and last four bytes of a file."""
    draw = np.random.default_rng(0)
    for number in range(400):
        kind = ("low", "high")[number % 2]
        (tmp_path / "files" / kind).mkdir(parents=True, exist_ok=True)
        content = bytes(draw.integers(*((97, 110), (110, 123))[number % 2], 12).tolist())
        (tmp_path / "files" / kind / f"{number}.x").write_bytes(b"  " + content + b"\n")
    text = "f = Cast <to = 1> (x)  t = Constant <value = float {100.0}> ()  d = Div (f, t)  h = MatMul (d, B)"
    model = made.model(f"{text}  e = Relu (h)  y = Gemm (e, W, b)", width=8)
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT32
    weight = np.random.default_rng(1).standard_normal((8, made.HIDDEN)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "B"))
    onnx.save(model, tmp_path / "bytes.onnx")
    (tmp_path / "strange").write_bytes(b"\xff\x00" * 20)
    return tmp_path


def test_a_model_of_bytes_is_guarded_from_the_command_line_and_opened_from_files(byte_files):
    place, network = byte_files, byte_files / "bytes.onnx"
    files = sorted((place / "files").rglob("*.x"))
    run("extract", place / "files", "--model", network, "--bytes", "4,4,256", "--no-labels", "--out", place / "train")
    run("fit", place / "train", "--model", network, "--out", place / "guard", "--detector", "knn")
    run("export", place / "guard", "--model", network, "--images", place / "files", "--out", place / "guard.zip")
    reads, exported = FileBytes(4, 4, 256), ood.Guard.open(place / "guard.zip")
    guard = ood.Guard.load(place / "guard", network)
    chosen = [*files[:20], place / "strange"]
    verdict = exported(chosen)
    rows = [torch.from_numpy(reads(io.BytesIO(path.read_bytes()))) for path in chosen]
    assert np.array_equal(verdict.is_id, guard(torch.stack(rows)).is_id.numpy())
    assert not verdict.is_id[-1]
    assert verdict.score[0] == exported(files[0].read_bytes()).score[0]
    for given in ([place / "guard", "--model", network], [place / "guard.zip"]):
        shown = json.loads(run("score", given[0], *chosen, *given[1:], "--json"))["verdicts"]
        assert [row["is_id"] for row in shown] == verdict.is_id.tolist()
    alone = [sys.executable, "-c", WITHOUT_TORCH, place / "guard.zip", *chosen]
    assert json.loads(subprocess.run(alone, check=True, capture_output=True).stdout) == verdict.is_id.tolist()
    with serving(place / "guard.zip") as server:
        raw = {"Content-Type": "application/x-www-form-urlencoded"}  # what curl --data-binary says
        answers = [server.score(path.read_bytes(), headers=raw).result for path in chosen]
    assert [answer["is_id"] for answer in answers] == verdict.is_id.tolist()
    with pytest.raises(DataError, match="a path or bytes, got int"):
        exported([3])
