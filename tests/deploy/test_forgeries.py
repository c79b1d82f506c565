"""Exported guards that were changed on purpose, with all checksums computed again.

What contradicts itself is refused. What does not cannot be known from the files: the last tests show what that is, and
docs/reliability.md says so.
"""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load, save
from support import exported_guards as made
from support.exported_guards import GRAPH, RECORD, TENSORS, in_limited_process, refusal

from oodles.deploy.exported import ExportedGuard
from oodles.errors import DataError


def with_fields(parts: made.Parts, changes: dict[str, object]) -> made.Parts:
    """Another value for each field, which is given by its path; ``...`` removes it."""
    record = made.record_of(parts)
    for path, value in changes.items():
        *above, last = path.split("/")
        holder = record
        for name in above:
            holder = holder[int(name) if isinstance(holder, list) else name]
        if value is ...:
            del holder[last]
        else:
            holder[int(last) if isinstance(holder, list) else last] = value
    return made.forged(parts, record)


# Records ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("vectors", {"class_names": ["a", "b"]}, "names 2 classes, but its graph has 3"),
        ("vectors", {"class_names": ["a", "b", 3]}, "class_names"),
        ("vectors", {"threshold/value": 10**400}, "threshold.value"),
        ("vectors", {"threshold/value": -1e300}, "does not hold the graph that its record describes"),
        ("vectors", {"inputs/0/name": "y"}, "does not hold the graph that its record describes"),
        ("vectors", {"inputs/0/dtype": "float64"}, "does not hold the graph that its record describes"),
        ("vectors", {"inputs/0/dtype": "object"}, "inputs[0].dtype"),
        ("vectors", {"inputs/0/shape": [None, 6]}, "does not hold the graph that its record describes"),
        ("vectors", {"inputs/0/shape": [None, 0]}, "inputs[0].shape"),
        ("vectors", {"inputs": []}, "inputs"),
        ("vectors", {"schema": 2}, "has schema 2, this version of oodles reads schema 1"),
        ("vectors", {"explanation": ...}, "missing required field `explanation`"),
        ("vectors", {"explanation/sparsified": [1]}, "cannot run its test inputs"),
        ("vectors", {"explanation/sparsified": [0, 0]}, "cannot run its test inputs"),
        ("vectors", {"explanation/sparsified": [-1]}, "explanation.sparsified"),
        ("vectors", {"explanation/sparsified": []}, "does not hold the graph that its record describes"),
        ("vectors", {"explanation/members": ["a", "b"]}, "contradicts itself in 'explanation'"),
        (
            "vectors",
            {"explanation/members": ["a", "b"], "explanation/limits": [None, -4], "explanation/reduction": "min"},
            "no usable reference scores",
        ),
        ("images", {"explanation/members": ["a"], "explanation/limits": [None]}, "no usable reference scores"),
        ("images", {"explanation/limits": [None]}, "contradicts itself in 'explanation'"),
        ("images", {"explanation/reduction": "max"}, "explanation.reduction"),
        ("images", {"explanation/sparsified": [0, 1]}, "cannot run its test inputs"),
        ("vectors", {"members/guard.onnx": ...}, "members"),
        ("vectors", {"members": {}}, "contradicts itself in 'members'"),
        ("vectors", {"model": ...}, "model"),
        ("vectors", {"surprise": 1}, "surprise"),
        ("vectors", {"threshold/surprise": 1}, "surprise"),
        ("vectors", {"kind": "guard"}, "not a record of kind 'exported guard'"),
        ("images", {"preprocessing/size": 3}, "gives other answers than when it was exported"),
        ("images", {"preprocessing/size": 5}, "contradicts itself in 'preprocessing'"),
        ("images", {"preprocessing/resize": 5}, "gives other answers than when it was exported"),
        ("images", {"preprocessing/resize": 65536}, "preprocessing.resize"),
        ("images", {"preprocessing/std": [1, 1, 0]}, "preprocessing.std"),
        ("images", {"preprocessing": None}, ""),
    ],
)
def test_a_record_that_contradicts_itself_or_the_graph_is_refused(originals, place, kind, changes, said):
    path = made.write(with_fields(originals[kind], changes), place / "guard.zip")
    if said:
        assert said in refusal(path)
    else:
        ExportedGuard.open(path)


@pytest.mark.parametrize("size", [0, 1, 1 << 20, 1 << 31, 10**30, -1])
def test_a_wrong_size_of_a_member_is_refused(parts, place, size):
    refusal(made.write(with_fields(parts, {f"members/{GRAPH}/bytes": size}), place / "guard.zip"))


def test_control_characters_of_a_record_are_not_in_the_message(parts, place):
    for number, name in enumerate(("x\ny", "\x1b[31m", "\u2028")):
        assert refusal(made.write(with_fields(parts, {name: 1}), place / f"{number}.zip")).isprintable()


# Tensors ----------------------------------------------------------------------------------------


def with_tensor(parts: made.Parts, place: Path, name: str, change) -> Path:
    """A tensor that was changed, or left out if ``change`` is None."""
    arrays = load(parts[TENSORS])
    value = arrays.pop(name)
    if change is not None:
        arrays[name] = np.ascontiguousarray(change(value))
    return made.write(made.forged(parts, tensors=save(arrays)), place / "guard.zip")


@pytest.mark.parametrize(
    "name", ["self_test.images", *(f"self_test.output.{name}" for name in ("logits", "score", "dropped"))]
)
@pytest.mark.parametrize(
    "change",
    [
        None,
        lambda a: a[:0],
        lambda a: a[..., None],
        lambda a: a.astype(np.complex64),
        lambda a: a.astype(bool),
        lambda a: a * np.float32(np.nan),
        lambda a: a + np.float32(1),
        lambda a: np.concatenate([a, a]),
    ],
)
def test_other_tensors_are_refused(parts, place, name, change):
    refusal(with_tensor(parts, place, name, change))


@pytest.mark.parametrize("name", ["reference_", "centre_", "spread_"])
@pytest.mark.parametrize("change", [None, lambda a: a[:1], lambda a: a * np.float32(np.nan), lambda a: a.astype(int)])
def test_other_reference_scores_of_an_ensemble_are_refused(originals, place, name, change):
    path = with_tensor(originals["images"], place, name, change)
    assert "no usable reference scores of its ensemble" in refusal(path)


# Graphs -----------------------------------------------------------------------------------------


def with_graph(parts: made.Parts, place: Path, change) -> Path:
    model = onnx.load_from_string(parts[GRAPH])
    change(model)
    return made.write(made.forged(parts, graph=model.SerializeToString()), place / "guard.zip")


LOCATIONS = ["beside", "../../etc/passwd", "/etc/passwd", "/dev/zero", "", "*/_ORT_MEM_ADDR_/*"]


@pytest.mark.parametrize("location", LOCATIONS)
@pytest.mark.parametrize("where", ["initializer", "attribute", "branch", "sparse", "function"])
def test_a_graph_with_tensors_in_another_file_is_refused_before_onnxruntime_sees_it(parts, place, where, location):
    Path("beside").write_bytes(bytes(1000))
    (place / "beside").write_bytes(bytes(1000))
    outside = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    entry = outside.external_data.add()
    entry.key, entry.value = "location", location
    constant = helper.make_node("Constant", [], ["w"], value=outside)

    def change(model: onnx.ModelProto) -> None:
        if where == "initializer":
            model.graph.initializer.append(outside)
        elif where == "attribute":
            model.graph.node.append(constant)
        elif where == "branch":
            inner = helper.make_graph([constant], "inner", [], [helper.make_tensor_value_info("w", 1, [4])])
            model.graph.node.append(helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner))
        elif where == "sparse":
            model.graph.sparse_initializer.add().values.CopyFrom(outside)
        else:
            version = [helper.make_opsetid("", 20)]
            model.functions.append(helper.make_function("", "F", [], ["w"], [constant], version))

    assert "names another file for its tensors" in refusal(with_graph(parts, place, change))


def test_a_graph_with_foreign_operators_is_refused(parts, place):
    def change(model: onnx.ModelProto) -> None:
        model.opset_import.append(helper.make_opsetid("evil", 1))
        model.graph.node.append(helper.make_node("Run", ["x"], ["y"], domain="evil"))

    assert "an operator that is not part of ONNX" in refusal(with_graph(parts, place, change))


@pytest.mark.parametrize("content", [b"", b"\xff" * 50, b"ORTM" * 50, b"\x3a\xff\xff\xff\x7f", b"\x80" * 40, b"\x0b"])
def test_what_is_no_graph_is_refused(parts, place, content):
    line = refusal(made.write(made.forged(parts, graph=content), place / "guard.zip"))
    assert "not an ONNX model" in line or not content


def test_a_graph_within_graphs_within_graphs_is_refused(parts, place):
    def change(model: onnx.ModelProto) -> None:
        inner = helper.make_graph([], "inner", [], [])
        for _ in range(20):
            inner = helper.make_graph([helper.make_node("If", ["x"], ["y"], then_branch=inner)], "g", [], [])
        model.graph.node.extend(inner.node)

    assert "nested more than" in refusal(with_graph(parts, place, change))


@pytest.mark.parametrize("elements", [10**10, 10**12, 1 << 62])
def test_a_graph_that_wants_more_memory_than_there_is_ends_in_one_line(parts, place, elements):
    """How much a graph takes is known only when it runs: a limit of the process turns it into an error."""

    def change(model: onnx.ModelProto) -> None:
        model.graph.initializer.append(numpy_helper.from_array(np.array([elements]), "size"))
        model.graph.node.append(helper.make_node("ConstantOfShape", ["size"], ["zeros"]))
        model.graph.node.append(helper.make_node("ReduceMax", ["zeros"], ["none"], keepdims=0))
        sums = next(node for node in model.graph.node if "score" in node.output)
        sums.output[:] = ["other"]
        model.graph.node.append(helper.make_node("Add", ["other", "none"], ["score"]))
        uses = [node for node in model.graph.node if "score" in node.input]
        for node in uses:
            model.graph.node.remove(node)
        model.graph.node.extend(uses)

    line, needed = in_limited_process(with_graph(parts, place, change), 2000)
    assert line.startswith("refused:")
    assert needed < 1000


@pytest.mark.parametrize("shape", [[1 << 40], [1 << 62, 1 << 62], [-1], [2, 3, 4]])
def test_a_constant_that_claims_another_shape_is_refused(parts, place, shape):
    def change(model: onnx.ModelProto) -> None:
        weight = max(model.graph.initializer, key=lambda each: len(each.raw_data))
        del weight.dims[:]
        weight.dims.extend(shape)

    line, needed = in_limited_process(with_graph(parts, place, change), 2000)
    assert line.startswith("refused:")
    assert needed < 1000


@pytest.mark.parametrize("output", ["score", "is_id", "p_value", "logits", "kept", "dropped", "bias", "factor"])
def test_other_answers_to_the_test_inputs_are_refused(parts, place, output):
    def change(model: onnx.ModelProto) -> None:
        node = next(node for node in model.graph.node if output in node.output)
        node.output[[*node.output].index(output)] = "other"
        operator = "Not" if output == "is_id" else "Exp"
        model.graph.node.append(helper.make_node(operator, ["other"], [output]))
        for user in model.graph.node[:-1]:
            for at, name in enumerate(user.input):
                if name == output:
                    user.input[at] = "other"

    assert f"test inputs' {output}" in refusal(with_graph(parts, place, change))


def test_a_graph_that_fails_on_other_inputs_says_so_in_one_line(parts, place):
    """It takes the two rows that it is tried with, and no others."""

    def change(model: onnx.ModelProto) -> None:
        model.graph.initializer.append(numpy_helper.from_array(np.array([2, 5]), "two rows"))
        taken = helper.make_node("Reshape", ["images", "two rows"], ["two"])
        for node in model.graph.node:
            for at, name in enumerate(node.input):
                if name == "images":
                    node.input[at] = "two"
        model.graph.node.insert(0, taken)

    guard = ExportedGuard.open(with_graph(parts, place, change))
    with pytest.raises(DataError, match="cannot be run on these inputs") as refused:
        guard(made.inputs("vectors"))
    assert len(str(refused.value).splitlines()) == 1


def test_a_graph_cannot_accept_what_has_no_score(parts, place):
    """Decisions and p-values follow from scores at every call, not only for the test inputs."""

    def change(model: onnx.ModelProto) -> None:
        for output, operator in (("is_id", "Or"), ("p_value", "Where")):
            node = next(node for node in model.graph.node if output in node.output)
            node.output[[*node.output].index(output)] = f"own {output}"
            model.graph.node.append(helper.make_node("IsNaN", ["score"], [f"nan {output}"]))
            model.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), f"one {output}"))
            given = [f"nan {output}", *(["one p_value"] if operator == "Where" else []), f"own {output}"]
            model.graph.node.append(helper.make_node(operator, given, [output]))

    guard = ExportedGuard.open(with_graph(parts, place, change))
    verdict = guard(np.full((1, 5), np.nan, np.float32))
    assert not verdict.is_id[0]
    assert verdict.p_value[0] == verdict.p_value.dtype.type(1 / (len(guard.threshold.id_scores) + 1))


# What cannot be known ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"threshold/value": -1000.0},
        {"class_names": ["c", "a", "b"]},
        {"agreement/score": 0.0},
        {"spec": "msp"},
        {"model": "0" * 64},
    ],
)
def test_what_is_consistent_cannot_be_known_to_be_wrong(parts, place, changes):
    original = ExportedGuard.open(made.write(parts, place / "original.zip"))
    other = ExportedGuard.open(made.write(with_fields(parts, changes), place / "guard.zip"))
    assert other.version != original.version
    answers, changed = original(made.inputs("vectors")), other(made.inputs("vectors"))
    assert np.array_equal(answers.score, changed.score)
    if "threshold/value" in changes:
        assert changed.is_id.all()


def test_a_consistent_other_network_cannot_be_known_to_be_wrong(parts, place):
    """Whoever replaces the graph also computes its answers to the test inputs."""
    model = onnx.load_from_string(parts[GRAPH])
    bias = next(each for each in model.graph.initializer if each.name == "network.fc.bias")
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + np.float32([9, 0, 0]), bias.name))
    arrays = load(parts[TENSORS])
    session = onnxruntime.InferenceSession(model.SerializeToString())
    given = {"images": arrays["self_test.images"]}
    for name in (name for name in arrays if name.startswith("self_test.output.")):
        arrays[name] = session.run([name.removeprefix("self_test.output.")], given)[0]
    forged = made.forged(parts, graph=model.SerializeToString(), tensors=save(arrays))
    assert json.loads(forged[RECORD])["seal"] != json.loads(parts[RECORD])["seal"]
    verdict = ExportedGuard.open(made.write(forged, place / "guard.zip"))(made.inputs("vectors"))
    assert (verdict.label == 0).all()
