"""What can go wrong. Every message names the object, the fact and the remedy."""


class OodlesError(Exception):
    """The root of all errors raised on purpose here; the command line turns it into one line."""


class ArgumentError(OodlesError, ValueError):
    """An argument is outside what the thing it was given to can mean."""


class DataError(OodlesError, ValueError):
    """Data is missing, unreadable, empty, or holds values nothing can be computed from."""


class ShapeError(OodlesError, ValueError):
    """Tensors that belong together do not fit together."""


class NotFittedError(OodlesError, RuntimeError):
    """A detector was asked for scores before it had learned anything."""


class HeadError(OodlesError, RuntimeError):
    """The model's last linear layer could not be found, or is not one affine map."""


class FileError(OodlesError, OSError):
    """A file on disk is missing, damaged, of a newer format, or belongs to something else."""
