"""Errors and warnings. Every message names the object, states the fact and gives the remedy."""


class OodlesError(Exception):
    """Base class of every error that oodles raises on purpose; the command line prints it as one line.

    >>> from oodles.detectors import DICE
    >>> try:
    ...     DICE(p=90)
    ... except OodlesError as error:
    ...     print(error)
    p=90 must lie in [0, 1); p is a fraction: 0.9, not 90
    """


class ArgumentError(OodlesError, ValueError):
    """An argument has a value that is not allowed.

    >>> from oodles.calibration import calibrate
    >>> calibrate([1.0, 2.0], id_rate=95)
    Traceback (most recent call last):
    oodles.errors.ArgumentError: id_rate=95 must lie strictly between 0 and 1; it is a fraction: 0.95, not 95
    """


class DataError(OodlesError, ValueError):
    """Data is missing, unreadable, empty, or contains values that nothing can be computed from.

    >>> from oodles.calibration import calibrate
    >>> calibrate([1.0, 2.0], id_rate=0.95)
    Traceback (most recent call last):
    oodles.errors.DataError: 2 ID scores are too few for id_rate=0.95; at least 19 are needed
    """


class ShapeError(OodlesError, ValueError):
    """Tensors that belong together have incompatible shapes or come from different models.

    >>> import torch
    >>> from oodles.features import Head
    >>> Head(torch.ones(3))
    Traceback (most recent call last):
    oodles.errors.ShapeError: a head's weight has the shape (3,); give a matrix (classes, width)
    """


class NotFittedError(OodlesError, RuntimeError):
    """A detector was used before it was fitted.

    >>> from oodles.detectors import KNN
    >>> from oodles.testing import example_features
    >>> KNN().score(example_features())
    Traceback (most recent call last):
    oodles.errors.NotFittedError: KNN(k=10, bank=10000) has not been fitted; call .fit(features) first
    """


class HeadError(OodlesError, RuntimeError):
    """The model's last linear layer could not be found, or its logits are not one affine map of an embedding.

    >>> import torch
    >>> from oodles.network.extraction import extract
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> try:
    ...     extract(model, [torch.ones(3, 2)], progress=False)
    ... except HeadError as error:
    ...     print(str(error).partition(',')[0])
    Sequential: no linear operation produces the logits of width 2
    """


class FileError(OodlesError, OSError):
    """A file is missing, damaged, written by a newer version, or belongs to something else.

    >>> from oodles.features import Features
    >>> Features.load("nowhere")
    Traceback (most recent call last):
    oodles.errors.FileError: nowhere does not exist; a feature store is a folder written by `oodles extract`
    """


class MissingPackageError(OodlesError, ImportError):
    """An optional package is needed and not installed.

    >>> from oodles.extras import needed_by
    >>> try:
    ...     with needed_by("rows.to_dataframe()"):
    ...         raise ModuleNotFoundError(name="pandas")
    ... except MissingPackageError as error:
    ...     print(error)
    rows.to_dataframe() needs pandas, which is not installed; install it with: pip install 'oodles[dataframe]'
    """


class FitWarning(UserWarning):
    """A detector was fitted, but had to leave something out: too few rows, empty classes, constant directions.

    >>> import warnings
    >>> from oodles.detectors import KNN
    >>> from oodles.testing import example_features
    >>> with warnings.catch_warnings(record=True, action="always") as caught:
    ...     detector = KNN(k=10).fit(example_features(rows=8))
    >>> print(caught[0].message)
    KNN(k=10, bank=10000): there are only 8 rows, so k is 8
    """
