"""Small ONNX classifiers, written by hand as other frameworks would write them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper, parser

WIDTH, HIDDEN, CLASSES = 6, 8, 3


def weights() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    shapes = {"A": (WIDTH, HIDDEN), "W": (HIDDEN, CLASSES), "V": (HIDDEN, CLASSES), "b": (CLASSES,), "w": (HIDDEN, 1)}
    shapes |= {"K": (CLASSES, 2, 1, 1), "c": (1,)}
    return {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


HEAD = "h = MatMul (x, A)  e = Relu (h)  g = MatMul (e, W)  z = Add (g, b)"
GRAPHS = {
    "logits": f"{HEAD}  y = Identity (z)",
    "softmax in five nodes": f"{HEAD}  top = ReduceMax <axes = [1]> (z)  d = Sub (z, top)  p = Exp (d)"
    "  one = Constant <value_ints = [1]> ()  s = ReduceSum (p, one)  y = Div (p, s)",
    "log softmax": f"{HEAD}  y = LogSoftmax (z)",
    "sigmoid": f"{HEAD}  y = Sigmoid (z)",
    "scaled": f"{HEAD}  two = Constant <value = float {{2.5}}> ()  y = Mul (z, two)",
    "two heads averaged": "h = MatMul (x, A)  e = Relu (h)  f = Tanh (h)  g = Gemm (e, W, b)  k = MatMul (f, V)"
    "  s = Add (g, k)  half = Constant <value = float {0.5}> ()  y = Mul (s, half)",
    "cosine": "h = MatMul (x, A)  n = ReduceL2 <axes = [1]> (h)  e = Div (h, n)  y = MatMul (e, W)",
    "pooled maps": "to = Constant <value_ints = [-1, 2, 1, 3]> ()  m = Reshape (x, to)  k = Conv (m, K, b)"
    "  p = GlobalAveragePool (k)  y = Flatten (p)",
    "scikit-learn": f's = ai.onnx.ml.Normalizer <norm = "L2"> (x)  best, y = ai.onnx.ml.LinearClassifier <'
    f"classlabels_ints = [0, 1, 2], coefficients = [{', '.join(f'{v:.3f}' for v in np.linspace(-1, 2, 18))}], "
    'intercepts = [0.1, 0.2, 0.3], post_transform = "SOFTMAX"> (s)',
    "one logit as two probabilities": "h = MatMul (x, A)  e = Relu (h)  z = Gemm (e, w, c)  p = Sigmoid (z)"
    "  one = Constant <value = float {1.0}> ()  q = Sub (one, p)  y = Concat <axis = 1> (q, p)",
    "control flow before it": "yes = Constant <value = bool {1}> ()  h = MatMul (x, A)  e = If (yes) <"
    "then_branch = a () => (r) { r = Relu (h) }, else_branch = b () => (t) { t = Tanh (h) }>  y = Gemm (e, W, b)",
}
# what cannot be guarded by its embedding, and a part of the message
REFUSED = {
    "relu behind the head": (f"{HEAD}  y = Relu (z)", "Relu behind Gemm|Relu behind MatMul"),
    "no constant head": ("y = Mul (x, x)", "without a linear layer"),
    "weights from the input": ("t = Transpose (x)  g = MatMul (t, x)  y = MatMul (x, g)", "without a linear layer"),
    "weights all zero": (f"{HEAD}  n = Constant <value = float {{0.0}}> ()  y = Mul (z, n)", "all zero"),
    "random": (f"{HEAD}  r = RandomNormalLike (z)  y = Add (z, r)", "stochastic"),
    "rows mixed": (f"{HEAD}  m = ReduceMean <axes = [0]> (z)  y = Sub (z, m)", "mixes the inputs"),
    "dynamic int8": (
        "h = MatMul (x, A)  q, s, o = DynamicQuantizeLinear (h)  i = Constant <value = int8[8, 3] "
        f"{{{', '.join(str(v % 7 - 3) for v in range(24))}}}> ()  k = MatMulInteger (q, i, o)  f = Cast <to = 1> (k)"
        "  y = Mul (f, s)",
        "quantised|mixes the inputs",
    ),
}


def model(text: str, *, opset: int = 17, output: str = "y", width: int = WIDTH) -> onnx.ModelProto:
    """A graph from ``x`` to an output, with the weights that it names."""
    head = f'<ir_version: 8, opset_import: ["": {opset}, "ai.onnx.ml": 3]>'
    made = parser.parse_model(f"{head}\nnet (float[n, {width}] x) => (float[n, m] {output}) {{ {text} }}")
    used = {name for node in made.graph.node for name in node.input}
    made.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in weights().items() if k in used)
    return made


def write(text: str, path: Path, **options: object) -> Path:
    onnx.save(model(text, **options), path)  # type: ignore[arg-type]
    return path


def batches(sizes: Sequence[int] = (40, 30), width: int = WIDTH) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, width, generator=generator) for size in sizes]
