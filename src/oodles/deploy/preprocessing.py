"""Preprocessing as an ONNX graph: from uint8 pixels of any size to what the network takes.

It computes what Pillow's ``resize`` computes, bit for bit: the same windows and weights in float64, weights
rounded to 22 binary places, columns before rows, and 8 bits between the two. The operator ``Resize`` of ONNX comes
close, but its weights are computed in float32.
"""

from collections.abc import Iterator, Sequence

import onnx
from onnx import inliner, parser

from oodles.data.transforms import Transform

IMAGES = "images"  # the output of the graph

GRAPH = """
<ir_version: {ir_version}, opset_import: ["": {opset}, "oodles": 1]>
preprocessing (uint8[n, height, width, {channels}] pixels) => (float[n, {channels}, {size}, {size}] images)
{{
    shape = Shape <start = 1, end = 3> (pixels)
    shorter = {divisor} (shape)
    wanted = Constant <value_ints = [{resize}]> ()
    times = Mul (shape, wanted)
    resized = Div (times, shorter)
    rows, columns = Split <num_outputs = 2> (resized)

    same = Equal (shape, resized)
    same_numbers = Cast <to = 7> (same)
    both = ReduceMin <keepdims = 0> (same_numbers)
    enough = Cast <to = 9> (both)
    small = If (enough) <
        then_branch = keep () => (unchanged) {{ unchanged = Identity (pixels) }},
        else_branch = change () => (changed) {{
            by_columns = Transpose <perm = [0, 2, 1, 3]> (pixels)
            narrow = oodles.resize_rows (by_columns, columns)
            by_rows = Transpose <perm = [0, 2, 1, 3]> (narrow)
            changed = oodles.resize_rows (by_rows, rows)
        }}
    >

    size = Constant <value_ints = [{size}]> ()
    spare = Sub (resized, size)
    spare_float = Cast <to = 11> (spare)
    two = Constant <value = double {{2.0}}> ()
    half = Div (spare_float, two)
    whole = {rounding} (half)
    start = Cast <to = 7> (whole)
    end = Add (start, size)
    axes = Constant <value_ints = [1, 2]> ()
    cropped = Slice (small, start, end, axes)

    channels_first = Transpose <perm = [0, 3, 1, 2]> (cropped)
    numbers = Cast <to = 1> (channels_first)
    brightest = Constant <value = float {{255.0}}> ()
    mean = Constant <value = float[1, {channels}, 1, 1] {{{mean}}}> ()
    std = Constant <value = float[1, {channels}, 1, 1] {{{std}}}> ()
    scaled = Div (numbers, brightest)
    centred = Sub (scaled, mean)
    images = Div (centred, std)
}}

<domain: "oodles", opset_import: ["": {opset}]>
resize_rows (input, wanted) => (output)
{{
    given = Shape <start = 1, end = 2> (input)
    zero = Constant <value = int64 {{0}}> ()
    one = Constant <value = int64 {{1}}> ()
    last_axis = Constant <value_ints = [1]> ()
    none = Constant <value = double {{0.0}}> ()
    half = Constant <value = double {{0.5}}> ()
    unit = Constant <value = double {{1.0}}> ()

    given_float = Cast <to = 11> (given)
    wanted_float = Cast <to = 11> (wanted)
    scale = Div (given_float, wanted_float)
    stretch = Max (scale, unit)
    furthest = Constant <value = double {{{furthest}}}> ()
    support = Mul (stretch, furthest)

    count = Squeeze (wanted)
    places = Range (zero, count, one)
    places_float = Cast <to = 11> (places)
    middles = Add (places_float, half)
    centres_row = Mul (middles, scale)
    centres = Unsqueeze (centres_row, last_axis)
    left = Sub (centres, support)
    left_rounded = Add (left, half)
    left_whole = Cast <to = 7> (left_rounded)
    first = Max (left_whole, zero)
    right = Add (centres, support)
    right_rounded = Add (right, half)
    right_whole = Cast <to = 7> (right_rounded)
    stop = Min (right_whole, given)

    reach = Ceil (support)
    reach_whole = Cast <to = 7> (reach)
    both_sides = Add (reach_whole, reach_whole)
    taps_list = Add (both_sides, one)
    taps = Squeeze (taps_list)
    steps = Range (zero, taps, one)
    window = Add (first, steps)

    window_float = Cast <to = 11> (window)
    offset = Sub (window_float, centres)
    distance = Add (offset, half)
    shrink = Div (unit, stretch)
    relative = Mul (distance, shrink)
    magnitude = Abs (relative)
    {weights}
    inside = Less (window, stop)
    weights = Where (inside, weight, none)
    total = ReduceSum <keepdims = 1> (weights, last_axis)
    share = Div (weights, total)
    precision = Constant <value = double {{4194304.0}}> ()
    precise = Mul (share, precision)
    size = Abs (precise)
    nearest = Add (size, half)
    rounded = Floor (nearest)
    sign = Sign (precise)
    signed = Mul (rounded, sign)
    coefficients = Cast <to = 6> (signed)
    largest = Sub (given, one)
    rows_of_taps = Min (window, largest)

    shape_before = Shape <end = 1> (input)
    shape_after = Shape <start = 2> (input)
    sum_shape = Concat <axis = 0> (shape_before, wanted, shape_after)
    half_step = Constant <value = int32 {{2097152}}> ()
    begin = Expand (half_step, sum_shape)
    go = Constant <value = bool {{1}}> ()
    sums = Loop (taps, go, begin) <
        body = add_tap (int64 tap, bool going, int32[n, rows, columns, {channels}] sum)
            => (bool still_going, int32[n, rows, columns, {channels}] next_sum) {{
            still_going = Identity (going)
            tap_rows = Gather <axis = 1> (rows_of_taps, tap)
            tap_weights = Gather <axis = 1> (coefficients, tap)
            pixels_of_tap = Gather <axis = 1> (input, tap_rows)
            values = Cast <to = 6> (pixels_of_tap)
            weight_axes = Constant <value_ints = [1, 2]> ()
            spread_weights = Unsqueeze (tap_weights, weight_axes)
            weighted = Mul (values, spread_weights)
            next_sum = Add (sum, weighted)
        }}
    >
    binary_places = Constant <value = int32 {{4194304}}> ()
    quotient = Div (sums, binary_places)
    darkest = Constant <value = int32 {{0}}> ()
    lightest = Constant <value = int32 {{255}}> ()
    limited = Clip (quotient, darkest, lightest)
    output = Cast <to = 2> (limited)
}}
"""


# weights by distance: polynomials, highest power first, each up to a distance; the furthest comes first
WEIGHTS: dict[str, Sequence[tuple[float, Sequence[float]]]] = {
    "bilinear": [(1.0, (-1.0, 1.0))],
    "bicubic": [(2.0, (-0.5, 2.5, -4.0, 2.0)), (1.0, (1.5, -2.5, 0.0, 1.0))],
}


def preprocessing_graph(transform: Transform, opset: int, ir_version: int) -> onnx.ModelProto:
    """A model from ``pixels``, uint8 ``(n, height, width, c)``, to ``images``, float ``(n, c, size, size)``."""
    text = GRAPH.format(
        ir_version=ir_version,
        opset=opset,
        size=transform.size,
        resize=transform.resize,
        channels=transform.channels,
        divisor="Identity" if transform.squash else "ReduceMin <keepdims = 1>",
        rounding="Floor" if transform.floor else "Round",
        furthest=WEIGHTS[transform.interpolation][0][0],
        weights="\n    ".join(_weight_lines(transform.interpolation)),
        mean=_numbers(transform.mean),
        std=_numbers(transform.std),
    )
    model: onnx.ModelProto = inliner.inline_local_functions(parser.parse_model(text))
    onnx.checker.check_model(model)
    return model


def _weight_lines(interpolation: str) -> Iterator[str]:
    """Yield the lines of the graph that compute ``weight`` from ``magnitude``, the distance."""
    weight = "none"
    for piece, (limit, coefficients) in enumerate(WEIGHTS[interpolation]):
        yield f"limit{piece} = Constant <value = double {{{limit}}}> ()"
        yield f"near{piece} = Less (magnitude, limit{piece})"
        value = "none"
        for power, coefficient in enumerate(coefficients):
            name = f"{piece}_{power}"
            yield f"number{name} = Constant <value = double {{{coefficient}}}> ()"
            yield f"times{name} = Mul ({value}, magnitude)"
            yield f"sum{name} = Add (times{name}, number{name})"
            value = f"sum{name}"
        yield f"weight{piece} = Where (near{piece}, {value}, {weight})"
        weight = f"weight{piece}"
    yield f"weight = Identity ({weight})"


def _numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{float(value):.17f}" for value in values)
