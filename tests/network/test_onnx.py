"""ONNX files as models: the head that is found on the graph, and what is refused."""

import pickle
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from support import onnx_files as made

import oodles as ood
from oodles.errors import ArgumentError, DataError, FileError, HeadError

quiet = pytest.mark.filterwarnings("ignore:.*(probabilities|single logit)")


def plain(path, batch):
    """What the file itself gives."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run([session.get_outputs()[-1].name], {"x": batch.numpy()})[0]


@pytest.mark.filterwarnings("ignore:.*may be multi-label")  # random weights look like sigmoids
@quiet
@pytest.mark.parametrize("kind", made.GRAPHS)
def test_the_head_is_found_and_gives_the_output(kind, tmp_path):
    path = made.write(made.GRAPHS[kind], tmp_path / "m.onnx")
    model, (first, second) = ood.OnnxModel(path), made.batches()
    features = ood.extract(model, [first, second], progress=False)
    expected = torch.from_numpy(np.concatenate([plain(path, each) for each in (first, second)]))
    finish = model.found.finish or (lambda logits: logits)
    assert torch.allclose(finish(features.head(features.embedding)), expected, atol=1e-5)
    assert torch.equal(model(second), expected[len(first) :])


@quiet
@pytest.mark.parametrize("dynamo", [False, True])
def test_a_file_and_the_module_it_was_exported_from_have_the_same_features(dynamo, tmp_path):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.ReLU(), torch.nn.Linear(9, 4)).eval()
    path, loader = tmp_path / "m.onnx", made.batches()
    how = {"dynamic_shapes": ({0: torch.export.Dim.DYNAMIC},), "external_data": False, "verbose": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net,
            (loader[0],),
            path,
            dynamo=dynamo,
            **how if dynamo else {"dynamic_axes": {"x": [0]}, "input_names": ["x"]},
        )
    ours, theirs = (ood.extract(model, loader, progress=False) for model in (path, net))
    assert torch.allclose(ours.embedding, theirs.embedding, atol=1e-6)
    assert torch.allclose(ours.head.weight, theirs.head.weight, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*may be multi-label")  # random weights look like sigmoids
@pytest.mark.parametrize("kind", made.REFUSED)
def test_what_has_no_affine_head_is_refused_in_one_line_and_scored_by_its_logits(kind, tmp_path):
    text, fact = made.REFUSED[kind]
    path = made.write(text, tmp_path / "m.onnx")
    with pytest.raises(HeadError, match=fact) as refusal:
        ood.extract(path, made.batches(), progress=False)
    assert "\n" not in str(refusal.value)
    if kind != "random":
        assert ood.extract(path, made.batches(), head=False, progress=False).head is None


@pytest.mark.parametrize("rows", [1, 4])
def test_a_fixed_number_of_rows_is_fed_in_blocks_of_that_size(rows, tmp_path):
    model = made.model(made.GRAPHS["logits"])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = rows
    free = ood.extract(made.write(made.GRAPHS["logits"], tmp_path / "free.onnx"), made.batches(), progress=False)
    onnx.save(model, tmp_path / "fixed.onnx")
    fixed = ood.extract(tmp_path / "fixed.onnx", made.batches(), progress=False)
    assert torch.allclose(fixed.embedding, free.embedding, atol=1e-6)


def test_an_output_is_chosen_by_name(tmp_path):
    model = made.model(f"{made.HEAD}  y = Softmax (z)")
    model.graph.output.append(helper.make_tensor_value_info("e", TensorProto.FLOAT, ["n", made.HIDDEN]))
    onnx.save(model, path := tmp_path / "m.onnx")
    with pytest.raises(ArgumentError, match=r"several outputs .*\(y, e\); name one: .*m.onnx:y"):
        ood.OnnxModel(path)
    with pytest.raises(ArgumentError, match="no output 'x'"):
        ood.OnnxModel(f"{path}:x")
    assert ood.OnnxModel(f"{path}:y").output == ood.OnnxModel(path, output="y").output == "y"


def strange(name, tmp_path):
    """A file that is no classifier, or that a stranger made to do harm."""
    model, path = made.model(made.GRAPHS["logits"]), tmp_path / "m.onnx"
    tensor = model.graph.initializer[0]
    if name == "another file":
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="/etc/passwd")
    elif name == "foreign operator":
        model.opset_import.append(helper.make_opsetid("evil", 1))
        model.graph.node[0].domain = "evil"
    elif name == "huge tensor":
        tensor.dims[:] = [1 << 30, 1 << 30]
    elif name == "huge constant":
        model = made.model(
            "d = Constant <value_ints = [1099511627776, 1024]> ()  o = ConstantOfShape (d)  y = MatMul (x, o)"
        )
    elif name == "cycle":
        model.graph.node[0].input[0] = "y"
    elif name == "no float output":
        model = made.model("y = ArgMax (x)")
        model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    path.write_bytes(b"no graph" if name == "no graph" else model.SerializeToString())
    return path


@pytest.mark.parametrize(
    "name",
    [
        "another file",
        "foreign operator",
        "huge tensor",
        "huge constant",
        "cycle",
        "no float output",
        "no graph",
        "missing",
    ],
)
def test_strange_files_are_refused_in_one_line(name, tmp_path):
    path = tmp_path / "none.onnx" if name == "missing" else strange(name, tmp_path)
    with pytest.raises((FileError, DataError, HeadError)) as refusal:
        ood.extract(path, made.batches(), progress=False)
    assert path.name in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_inputs_are_checked_and_converted_only_if_no_number_changes(tmp_path):
    model = ood.OnnxModel(made.write(made.GRAPHS["logits"], tmp_path / "m.onnx"))
    assert torch.equal(model(torch.ones(2, 6).double()), model(x=torch.ones(2, 6)))
    for wrong in ((), (torch.ones(2, 6),) * 2, (torch.ones(2, 6, dtype=torch.complex64),)):
        with pytest.raises(DataError, match="takes x"):
            model(*wrong)
    with pytest.raises(ArgumentError, match="onnxruntime has no TPU"):
        ood.OnnxModel(model.path, device="TPU")


def test_a_guard_is_saved_loaded_and_pickled_with_its_file(tmp_path):
    path, loader = made.write(made.GRAPHS["logits"], tmp_path / "m.onnx"), made.batches((300, 100))
    guard = ood.Guard.fit(path, loader)
    guard.save(tmp_path / "guard")
    for other in (ood.Guard.load(tmp_path / "guard", path), pickle.loads(pickle.dumps(guard))):
        assert torch.equal(other(loader[1]).score, guard(loader[1]).score)
    changed = made.write(f"{made.HEAD}  y = Neg (z)", tmp_path / "other.onnx")
    with pytest.raises(FileError, match="guards another model"):
        ood.Guard.load(tmp_path / "guard", changed)
    with pytest.raises(ArgumentError, match="ONNX file"):
        ood.Guard.load(tmp_path / "guard", "model.pt")
