"""Errors and warnings. Every message names the object, states the fact and gives the remedy."""


class OodlesError(Exception):
    """Base class of every error that oodles raises on purpose; the command line prints it as one line."""


class ArgumentError(OodlesError, ValueError):
    """An argument has a value that is not allowed."""


class DataError(OodlesError, ValueError):
    """Data is missing, unreadable, empty, or contains values that nothing can be computed from."""


class ShapeError(OodlesError, ValueError):
    """Tensors that belong together have incompatible shapes or come from different models."""


class NotFittedError(OodlesError, RuntimeError):
    """A detector was used before it was fitted."""


class HeadError(OodlesError, RuntimeError):
    """The model's last linear layer could not be found, or its logits are not one affine map of an embedding."""


class FileError(OodlesError, OSError):
    """A file is missing, damaged, written by a newer version, or belongs to something else."""


class MissingPackageError(OodlesError, ImportError):
    """An optional package is needed and not installed."""


class FitWarning(UserWarning):
    """A detector was fitted, but had to leave something out: too few rows, empty classes, constant directions."""
