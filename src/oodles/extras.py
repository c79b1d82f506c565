"""Packages that oodles can do without: which extra installs each, and the error that says so where one is missing."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from oodles.errors import MissingPackageError

# the name to import, the package's own name, the extra of oodles that installs it
PACKAGES = {
    "torch": ("PyTorch", "torch"),
    "scipy": ("SciPy", "torch"),
    "pooch": ("pooch", "torch"),
    "onnx": ("ONNX", "onnx"),
    "onnxruntime": ("ONNX Runtime", "onnx"),
    "onnxscript": ("ONNX Script", "onnx"),
    "pyarrow": ("pyarrow", "parquet"),
    "ray": ("Ray Data", "ray"),
    "pandas": ("pandas", "dataframe"),
    "fastapi": ("FastAPI", "serve"),
    "fastapi_offline": ("fastapi-offline", "serve"),
    "uvicorn": ("uvicorn", "serve"),
    "httptools": ("httptools", "serve"),
    "prometheus_client": ("prometheus-client", "serve"),
    "starlette": ("Starlette", "serve"),
    "tokenizers": ("tokenizers", "text"),
    "sklearn": ("scikit-learn", "layers"),
    "torchvision": ("torchvision", "torchvision"),
}


@contextmanager
def needed_by(user: str) -> Iterator[None]:
    """Turn a missing optional package into an error that says that ``user`` needs it and how to install it.

    >>> with needed_by("oodles fly"):
    ...     raise ModuleNotFoundError("No module named 'torch'", name="torch")
    Traceback (most recent call last):
    oodles.errors.MissingPackageError: oodles fly needs PyTorch, which is not installed; install it with: pip install \
'oodles[torch]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        # a part that an installed package does not have is another problem
        if name not in PACKAGES or (name != error.name and sys.modules.get(name) is not None):
            raise
        package, extra = PACKAGES[name]
        raise MissingPackageError(
            f"{user} needs {package}, which is not installed; install it with: pip install 'oodles[{extra}]'", name=name
        ) from None
