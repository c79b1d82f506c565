"""``OnnxModel``: a classifier in an ONNX file, from any framework, as a model that onnxruntime runs."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from oodles.errors import ArgumentError, DataError, FileError
from oodles.extras import needed_by
from oodles.network.graph_check import check_graph
from oodles.network.sessions import start_session
from oodles.network.taps import TapPoint, check_model
from oodles.records.files import read_regular
from oodles.records.text import one_line, printable

SUFFIX = ".onnx"
MAX_BYTES = 1 << 31  # of a Protocol Buffers message
FLOATS = ("tensor(float)", "tensor(double)", "tensor(float16)")
DTYPES = {"float": "float32", "double": "float64"}  # of onnxruntime; others are called as in NumPy
ONE_FILE = "save it with its tensors: onnx.save(onnx.load(path), new_path)"

Array = npt.NDArray[Any]


class OnnxModel(nn.Module):
    """A classifier in an ONNX file, wherever a model is taken; the path ``"model.onnx"`` alone stands for it.

    ``output`` is the name of the output with the logits or probabilities, if there are several; ``"model.onnx:scores"``
    names it too. ``device`` is ``cpu``, ``cuda`` or the name of one of onnxruntime's execution providers, ``threads``
    the number for one call, by default that of torch. The file is checked before onnxruntime is given it: it must
    contain its own tensors, and operators that are part of ONNX or onnxruntime.

    >>> import onnx, tempfile
    >>> graph = "net (float[n, 2] x) => (float[n, 2] y) <float[2, 2] W = {1, 2, 3, 4}> { y = MatMul (x, W) }"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     onnx.save(onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]>' + graph), f"{folder}/m.onnx")
    ...     OnnxModel(f"{folder}/m.onnx")(torch.ones(1, 2))
    tensor([[4., 6.]])
    """

    digest: Tensor

    def __init__(
        self, path: str | Path, *, output: str | None = None, device: str = "cpu", threads: int | None = None
    ) -> None:
        super().__init__()
        name, chosen = _split(str(path))
        self.path = Path(name)
        self.device, self.threads = device, threads or torch.get_num_threads()
        self.content = self._read()
        self._taps: tuple[str, ...] = ()
        self.found: Any = None  # the head, once it was located
        self._session = self.start(self.content)
        self.output = self._choose_output(output or chosen)
        known = self._session.get_inputs()
        self._types = {each.name: each.type.removeprefix("tensor(").removesuffix(")") for each in known}
        self.input_names = tuple(self._types)
        sizes = {each.shape[0] for each in known if each.shape and isinstance(each.shape[0], int)}
        if len(sizes) > 1:
            raise ArgumentError(f"{self.path} takes inputs with different numbers of rows, {sorted(sizes)}")
        self.fixed_rows: int | None = next(iter(sizes), None)
        digest = hashlib.sha256(self.content + self.output.encode()).digest()
        # a buffer, so that it is part of the model's fingerprint, and shows where the model was moved to
        self.register_buffer("digest", torch.tensor([*digest], dtype=torch.uint8))

    def forward(self, *args: Any, **named: Any) -> Tensor:
        """The output, of each row of the inputs, which are given by position or by name."""
        return self.run(args, named, ())[0]

    def run(self, args: Sequence[Any], named: Mapping[str, Any], taps: Sequence[str]) -> list[Tensor]:
        """The output and the tensors of these names inside the graph, which :meth:`expose` has been given."""
        arrays = self.arrays(args, named)
        names = [self.output, *taps]
        rows = len(next(iter(arrays.values())))
        if self.fixed_rows is None or rows == self.fixed_rows:
            parts = [self._session.run(names, arrays)]
        else:
            parts = [self._session.run(names, part) for part in _blocks(arrays, rows, self.fixed_rows)]
        joined = parts[0] if len(parts) == 1 else [np.concatenate(each) for each in zip(*parts, strict=True)]
        return [torch.from_numpy(each[:rows]) for each in joined]

    def arrays(self, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Array]:
        """The inputs as the graph takes them, by name."""
        return {name: self._fitting(name, value) for name, value in self.by_name(args, named).items()}

    def by_name(self, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs as they were given, by name."""
        given = dict(zip(self.input_names, args, strict=False)) | dict(named)
        if len(args) > len(self.input_names) or given.keys() != self._types.keys():
            got = ", ".join([*(["by position"] * len(args)), *map(str, named)]) or "nothing"
            raise DataError(f"{self.path} takes {', '.join(map(printable, self.input_names))}, each once; got {got}")
        return given

    def expose(self, names: Sequence[str]) -> None:
        """Let :meth:`run` give these tensors of the graph as well."""
        with needed_by("an ONNX model"):
            from oodles.network.onnx_graph import with_outputs
        if not {*names} <= {*self._taps}:
            self._session = self.start(with_outputs(self.parsed(), names).SerializeToString())
            self._taps = tuple(names)

    def tap(self, points: Sequence[TapPoint]) -> "OnnxTap":
        """What gives the output together with the tensors at these points."""
        names = [str(point.module) for point in points]
        self.expose(names)
        return OnnxTap(self, names)

    def parsed(self) -> Any:
        """The file as an ``onnx.ModelProto``."""
        import onnx

        return onnx.load_from_string(self.content)

    def start(self, graph: bytes) -> Any:
        """A session for a graph that was made of this one."""
        return start_session(self.path, graph, self.device, self.threads)

    def __repr__(self) -> str:  # and not extra_repr: a fingerprint must not depend on the place of the file
        return f"OnnxModel({str(self.path)!r}, output={self.output!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_session"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        taps = state.pop("_taps")
        self.__dict__.update(state, _taps=())
        self._session = self.start(self.content)
        self.expose(taps)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the session with the model: ``model.to("cuda")``."""
        before = self.digest.device.type
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.digest.device.type != before:
            self.device = self.digest.device.type
            self.__setstate__(self.__getstate__())
        return self

    def _read(self) -> bytes:
        """The checked file; the maps that scikit-learn's converter puts at the end are left out."""
        with needed_by("an ONNX model"):
            import onnx
        content = read_regular(self.path, MAX_BYTES, links=True, remedy="give the ONNX file of a classifier")
        try:
            check_graph(content)
            model = onnx.load_from_string(content)
        except FileError as error:
            remedy = ONE_FILE if "names another file" in str(error) else "give the ONNX file of a classifier"
            raise FileError(f"{self.path}: {error}; {remedy}") from None
        except Exception as error:  # of Protocol Buffers
            raise FileError(f"{self.path} is not an ONNX model ({one_line(error)})") from None
        return content if _unzip(model) is None else model.SerializeToString()

    def _choose_output(self, wanted: str | None) -> str:
        known: dict[str, Any] = {each.name: each for each in self._session.get_outputs()}
        fitting: list[str] = [
            each.name
            for each in known.values()
            if each.type in FLOATS and len(each.shape) != 1 and all(size == 1 for size in each.shape[2:])
        ]
        shown = ", ".join(printable(name) for name in fitting or known)
        if wanted is not None:
            if wanted not in fitting:
                raise ArgumentError(f"{self.path} has no output {wanted!r} of shape (rows, classes); it has {shown}")
            return wanted
        if "logits" in fitting:
            return "logits"
        if len(fitting) == 1:
            return fitting[0]
        if not fitting:
            raise FileError(f"{self.path} has no output of shape (rows, classes) with floats; it has {shown}")
        choice = f"{self.path}:{printable(fitting[0])}"
        raise ArgumentError(f"{self.path} has several outputs that could be its logits ({shown}); name one: {choice}")

    def _fitting(self, name: str, value: Any) -> Array:
        kind = self._types[name]
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        try:
            wanted = np.dtype(DTYPES.get(kind, kind))
        except TypeError:
            raise DataError(
                f"{self.path}: its input {printable(name)} is a {kind}; only numbers can be given"
            ) from None
        if array.dtype == wanted:
            return np.ascontiguousarray(array)
        fits = np.can_cast(array.dtype, wanted, "same_kind")
        converted = array.astype(wanted) if fits else array
        if not fits or (wanted.kind in "iu" and (converted != array).any()):
            raise DataError(f"{self.path} takes {printable(name)} as {wanted}, got {array.dtype}; convert it")
        return np.ascontiguousarray(converted)


class OnnxTap:
    """Runs an :class:`OnnxModel` and keeps tensors inside its graph, as :class:`oodles.network.taps.Tap` does."""

    def __init__(self, model: OnnxModel, names: Sequence[str]) -> None:
        self._model, self._names = model, tuple(names)

    def __call__(self, call: Callable[[Any], Any]) -> tuple[object, list[Tensor], dict[str, Tensor]]:
        """The model's output, the tensors in order, no inner layers; ``call`` calls the model, or has the answer."""
        output, *kept = call(lambda *args, **named: self._model.run(args, named, self._names))
        return output, kept, {}


def as_model(model: nn.Module | str | Path) -> nn.Module:
    """A model as it is, or that in the ONNX file of this name, perhaps with that of its output: ``"m.onnx:scores"``."""
    if isinstance(model, str | Path) and is_onnx(str(model)):
        return OnnxModel(model)
    check_model(model)
    return cast(nn.Module, model)


def is_onnx(text: str) -> bool:
    """Whether text names an ONNX file and not a function that makes a model."""
    return Path(_split(text)[0]).suffix.lower() == SUFFIX


def _split(text: str) -> tuple[str, str | None]:
    """A path and the name of an output after it."""
    named = re.fullmatch(r"(.*\.onnx):(.+)", text, re.IGNORECASE | re.DOTALL)
    return (text, None) if named is None or Path(text).exists() else (named[1], named[2])


def _blocks(arrays: dict[str, Array], rows: int, size: int) -> list[dict[str, Array]]:
    """The inputs in blocks of the only size that a graph takes, the last one filled up with its last row."""
    places = np.minimum(np.arange(-(-rows // size) * size), rows - 1).reshape(-1, size)
    return [{name: value[block] for name, value in arrays.items()} for block in places]


def _unzip(model: Any) -> Any:
    """Let outputs that are lists of maps be the tensors that they are made of; None if there are none."""
    maps = {node.output[0]: node for node in model.graph.node if node.op_type == "ZipMap"}
    changed = [each for each in model.graph.output if each.name in maps]
    for value in changed:
        value.CopyFrom(type(value)(name=maps[value.name].input[0]))
    for node in maps.values() if changed else ():
        model.graph.node.remove(node)
    return changed or None
