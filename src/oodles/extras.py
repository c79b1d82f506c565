"""Packages that oodles can do without: which extra installs each, and the error that says so where one is missing."""

from collections.abc import Iterator
from contextlib import contextmanager

from oodles.errors import MissingPackageError

# the name to import, the package's own name, the extra of oodles that installs it
PACKAGES = {
    "torch": ("PyTorch", "torch"),
    "scipy": ("SciPy", "torch"),
    "onnx": ("ONNX", "onnx"),
    "onnxruntime": ("ONNX Runtime", "onnx"),
    "onnxscript": ("ONNX Script", "onnx"),
    "pyarrow": ("pyarrow", "parquet"),
    "ray": ("Ray Data", "ray"),
    "pandas": ("pandas", "ray"),  # which Ray Data needs
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
        # only the package itself: a missing part of an installed one is another problem
        if error.name not in PACKAGES:
            raise
        package, extra = PACKAGES[error.name]
        raise MissingPackageError(
            f"{user} needs {package}, which is not installed; install it with: pip install 'oodles[{extra}]'",
            name=error.name,
        ) from None
