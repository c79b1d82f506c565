"""Graphs in onnxruntime. Nothing here needs PyTorch."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from oodles.errors import ArgumentError, FileError
from oodles.extras import needed_by
from oodles.records.text import one_line

if TYPE_CHECKING:
    import onnxruntime

DEVICES = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


def start_session(
    path: Path, graph: bytes, device: str = "cpu", threads: int | None = None
) -> "onnxruntime.InferenceSession":
    """The checked graph of the file ``path`` in onnxruntime.

    ``device`` is ``cpu``, ``cuda``, or the name of one of onnxruntime's execution providers.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # it would send reports of its use, from its import on
    with needed_by("an ONNX graph"):
        import onnxruntime
    onnxruntime.disable_telemetry_events()  # if somebody has imported it before
    provider, available = DEVICES.get(device, device), onnxruntime.get_available_providers()
    if provider not in available:
        known = f"device= is {', '.join(DEVICES)}, or a provider: {', '.join(available)}"
        raise ArgumentError(f"device={device!r} cannot be used here: onnxruntime has no {provider}; {known}")
    if threads is not None and threads < 1:
        raise ArgumentError(f"threads={threads} must be at least 1")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised
    options.add_session_config_entry("session.load_model_format", "ONNX")  # and not onnxruntime's own
    options.intra_op_num_threads = threads or 0
    providers = list(dict.fromkeys((provider, DEVICES["cpu"])))
    try:
        # without a fallback, which is announced on standard output
        return onnxruntime.InferenceSession(graph, options, providers=providers, enable_fallback=0)
    except Exception as error:  # its errors have no common class
        raise FileError(f"{path}: onnxruntime refuses the graph: {one_line(error)}") from None


def run_options() -> "onnxruntime.RunOptions":
    """With these a graph computes the outputs that are asked for, and nothing else."""
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.only_execute_path_to_fetches = True
    return options
