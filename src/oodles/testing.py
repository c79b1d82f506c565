"""The conformance suite every detector passes; run it on your own with ``check_detector(MyDetector())``."""

import copy
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from oodles.columns import LAYER
from oodles.deploy.saving import load_detector, save_detector
from oodles.detectors import Detector, NetworkDetector
from oodles.detectors.base import INPUTS, extra_columns
from oodles.detectors.network_detector import is_tuned
from oodles.errors import ArgumentError, DataError, FitWarning, NotFittedError, OodlesError, ShapeError
from oodles.features import Features, Head

__all__ = ["check_detector", "example_features"]

Check = Callable[[Detector, Features], None]


def example_features(rows: int = 300, width: int = 24, classes: int = 5, seed: int = 0) -> Features:
    """Small labelled features like those of a ReLU network: non-negative, one unit dead, classes separated.

    >>> example_features(rows=100, classes=4)
    Features(rows=100, width=24, classes=4, labels=yes)
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % classes
    centres = torch.rand(classes, width, generator=generator) * 2
    embedding = (centres[labels] + 0.5 * torch.randn(rows, width, generator=generator)).relu()
    embedding[:, -1] = 0
    weight = centres - centres.mean(dim=0) + 0.1 * torch.randn(classes, width, generator=generator)
    bias = 0.1 * torch.randn(classes, generator=generator)
    return Features(embedding, labels=labels, head=Head(weight, bias))


def check_detector(detector: Detector, features: Features | None = None) -> None:
    """Raise ``AssertionError`` unless the detector behaves as every detector must; see ``CHECKS``.

    The detector itself is not fitted, only copies of it. ``features`` are ID features to fit and score on; by default
    :func:`example_features`, with made-up columns for the layers and input steps that it needs.

    >>> class Rank(Detector):
    ...     def forward(self, embedding, logits, *others):
    ...         return embedding[:, 0].argsort().argsort().float()
    >>> check_detector(Rank())
    Traceback (most recent call last):
    AssertionError: Rank(): scores depend on the batch size (relative error 0.98)
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the example has a dead unit
        features = with_passes(detector, example_features()) if features is None else features
        for check in CHECKS:
            # each check gets its own copy of the rows, so that writing into them cannot affect the next
            check(copy.deepcopy(detector), _copy(features))


def with_passes(detector: Detector, features: Features, seed: int = 0) -> Features:
    """The features with made-up columns for the inner layers and input steps that the detector needs.

    A step's column is the column it keeps plus a little noise. A copy of the detector is fitted for the steps that are
    only known after fitting.
    """
    if not isinstance(detector, NetworkDetector):
        return features
    generator = torch.Generator().manual_seed(seed)
    layers = {name: features.embedding.clone() for name in detector.layers}
    columns = {LAYER + name: column for name, column in layers.items()}
    columns |= {"embedding": features.embedding, "logits": features.logits}
    fitted = copy.deepcopy(detector)
    if detector.layers or detector.trials():
        fitted.fit(_copy(features, layers))
    for step in (*fitted.trials(), *fitted.steps()):
        noise = torch.randn(columns[step.keep].shape, generator=generator)
        layers[step.name] = columns[step.keep] + 0.01 * noise
    return _copy(features, layers)


def fit_and_tune(detector: Detector, features: Features) -> Detector:
    """Fit, and tune against the same rows with their columns shuffled."""
    detector.fit(features)
    return _tuned(detector, features)


def unfitted_refuses(detector: Detector, features: Features) -> None:
    """A detector that has something to learn refuses to score before it is fitted."""
    if detector.learns_from or not is_tuned(detector):
        _raises(NotFittedError, lambda: detector.score(features), "scoring before fit")
    if detector.learns_from:
        _raises(NotFittedError, lambda: detector.finish(), "finishing before observing")


def fit_returns_self(detector: Detector, features: Features) -> None:
    """``fit`` returns the detector, and scores are one finite number per row."""
    assert detector.fit(features) is detector, f"{detector}.fit must return the detector itself"
    scores = _tuned(detector, features).score(features)
    assert scores.shape == (len(features),), f"{detector} gives scores of shape {tuple(scores.shape)}"
    assert scores.dtype == torch.float32, f"{detector} gives {scores.dtype}, not float32"
    assert torch.isfinite(scores).all(), f"{detector} gives scores that are not finite"


def rows_are_independent(detector: Detector, features: Features) -> None:
    """A row's score does not depend on the rows it is scored with, nor on their order."""
    scores = fit_and_tune(detector, features).score(features)
    parts = torch.cat([detector.score(batch) for batch in features.batches(7)])
    _close(parts, scores, f"{detector}: scores depend on the batch size")
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(1))
    _close(detector.score(features[order]), scores[order], f"{detector}: scores depend on the order of rows")
    _close(detector.score(features[3:4]), scores[3:4], f"{detector}: scores depend on neighbouring rows")


def fit_forgets(detector: Detector, features: Features) -> None:
    """Fitting again is as if it were the first time, and both give the same scores."""
    scores = fit_and_tune(copy.deepcopy(detector), features).score(features)
    detector.fit(features[: len(features) // 3])
    fit_and_tune(detector, features)
    assert torch.equal(detector.score(features), scores), f"{detector}: a second fit depends on the first"


def merge_is_one_fit(detector: Detector, features: Features) -> None:
    """Learning in parts, in any order, and merging gives the same as one fit."""
    whole = fit_and_tune(copy.deepcopy(detector), features).score(features)
    cut = len(features) // 3
    parts = [copy.deepcopy(detector).partial_fit(part) for part in (features[:cut], features[cut:])]
    for first, second in (parts, reversed(parts)):
        merged = copy.deepcopy(first).merge(second).finish()
        _close(_tuned(merged, features).score(features), whole, f"{detector}: merge differs from one fit")
    folded = copy.deepcopy(detector)
    for batch in features.batches(11):
        folded.partial_fit(batch)
    _close(_tuned(folded.finish(), features).score(features), whole, f"{detector}: partial_fit differs from fit")
    fitted = copy.deepcopy(detector).fit(features)
    if detector.learns_from:
        _raises(ArgumentError, lambda: fitted.partial_fit(features), "partial_fit after fit")
        _raises(ArgumentError, lambda: fitted.merge(parts[0]), "merge after fit")


def float32_agrees(detector: Detector, features: Features) -> None:
    """Scores in float32 agree with those in float64."""
    fit_and_tune(detector, features)
    wide = copy.deepcopy(detector).double().score(features.to(dtype=torch.float64))
    assert wide.dtype == torch.float64, f"{detector}.double() gives {wide.dtype}"
    _close(detector.score(features).double(), wide, f"{detector}: float32 and float64 disagree", 1e-4)


def inputs_are_untouched(detector: Detector, features: Features) -> None:
    """Neither fit nor score modifies its input."""
    embedding, logits = features.embedding.clone(), features.logits.clone()
    fit_and_tune(detector, features).score(features)
    assert torch.equal(features.embedding, embedding), f"{detector} changes embeddings"
    assert torch.equal(features.logits, logits), f"{detector} changes logits"


def saving_keeps_scores(detector: Detector, features: Features) -> None:
    """A detector that was saved and loaded, or filled from a state dict, gives the same scores bit for bit."""
    scores = fit_and_tune(copy.deepcopy(detector), features).score(features)
    fitted = fit_and_tune(copy.deepcopy(detector), features)
    if type(detector).__module__ == "__main__":
        warnings.warn(f"{detector} is of a script or notebook: move its class to a module to save it", stacklevel=3)
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "detector"
            save_detector(fitted, path)
            loaded = load_detector(path)
        assert type(loaded) is type(fitted), f"{detector} is loaded as {loaded}"
        assert loaded.spec == fitted.spec, f"{detector} is loaded as {loaded}"
        assert torch.equal(loaded.score(features), scores), f"{detector}: loading changes scores"
    fresh = copy.deepcopy(detector)
    fresh.load_state_dict(fitted.state_dict())
    assert torch.equal(fresh.score(features), scores), f"{detector}: the state dict does not hold everything"


def exporting_keeps_scores(detector: Detector, features: Features) -> None:
    """``torch.export`` with a dynamic number of rows gives the same scores, and NaN stays NaN."""
    fit_and_tune(detector, features)
    rows = {0: torch.export.Dim("rows", min=2, max=1 << 20)}
    extras = extra_columns(detector)
    columns = [features.column(name).float() for name in (*INPUTS, *extras)]
    others = ((rows,) * len(extras),) if extras else ()
    sample = tuple(column[:2] for column in columns)
    program = torch.export.export(detector, sample, dynamic_shapes=(rows, rows, *others)).module()
    for count in (2, 9):
        with torch.no_grad():
            exported = program(*(column[:count] for column in columns))
        _close(exported, detector.score(features[:count]), f"{detector}: the exported graph differs")
    broken = detector(*(torch.full_like(column[:2], torch.nan) for column in columns))
    assert torch.isnan(broken).all(), f"{detector}: a NaN input does not get a NaN score"


def huge_rows_have_no_infinite_score(detector: Detector, features: Features) -> None:
    """However large a row is, its score is a number or NaN; a row with an infinite value gets NaN."""
    fit_and_tune(detector, features)
    columns = {name: features.column(name) for name in detector.scores_from}
    for size in (1e-40, 1e5, 1e15, 1e25, 1e35):
        scores = detector.score(Features.unvalidated({name: size * column for name, column in columns.items()}))
        assert not scores.isinf().any(), f"{detector}: rows of {size:g} have infinite scores; make them NaN"
    for name in columns:
        broken = {each: column.clone() for each, column in columns.items()}
        broken[name][2, 0] = torch.inf
        scores = detector.score(Features.unvalidated(broken))
        assert scores.isnan().nonzero().flatten().tolist() == [2], f"{detector}: an infinite {name} must get NaN"


def bad_input_is_named(detector: Detector, features: Features) -> None:
    """Wrong widths, NaN and empty input raise errors of the right kind."""
    fit_and_tune(detector, features)
    head = features.head
    assert head is not None
    if "embedding" in detector.scores_from and detector.learns_from:
        wider = Features(torch.rand(4, features.width + 1), head=Head(torch.rand(features.classes, features.width + 1)))
        _raises(ShapeError, lambda: detector.score(wider), "another width")
        _raises(OodlesError, lambda: detector.score(Features(logits=features.logits)), "logits alone")
    elif detector.learns_from and "logits" in detector.scores_from:
        more = Features(logits=torch.rand(4, features.classes + 1))
        _raises(ShapeError, lambda: detector.score(more), "more classes")
    broken = features.embedding.clone()
    broken[2, 0] = torch.nan
    _raises(DataError, lambda: Features(broken, head=head), "NaN")
    _raises(DataError, lambda: Features(broken[:0], head=head), "no rows")


CHECKS: tuple[Check, ...] = (
    unfitted_refuses,
    inputs_are_untouched,
    fit_returns_self,
    rows_are_independent,
    fit_forgets,
    merge_is_one_fit,
    float32_agrees,
    saving_keeps_scores,
    exporting_keeps_scores,
    huge_rows_have_no_infinite_score,
    bad_input_is_named,
)


def _copy(features: Features, layers: Mapping[str, Tensor] | None = None) -> Features:
    labels = None if features.labels is None else features.labels.clone()
    layers = {name: column.clone() for name, column in (features.layers if layers is None else layers).items()}
    embedding, logits = features.embedding.clone(), features.logits.clone()
    return Features(embedding, logits=logits, labels=labels, head=features.head, layers=layers)


def _tuned(detector: Detector, features: Features) -> Detector:
    if isinstance(detector, NetworkDetector) and not detector.tuned:
        order = torch.randperm(len(features), generator=torch.Generator().manual_seed(2))
        layers = {name: column[order].flip(1) for name, column in features.layers.items()}
        embedding = features.embedding[order].flip(1)
        detector.tune(features, Features(embedding, head=features.head, layers=layers))
    return detector


def _close(got: Tensor, want: Tensor, problem: str, tolerance: float = 1e-5) -> None:
    gap = float((got.double() - want.double()).abs().max()) / max(1.0, float(want.double().abs().max()))
    assert gap <= tolerance, f"{problem} (relative error {gap:.2g})"


def _raises(kind: type[Exception], action: Callable[[], object], what: str) -> None:
    try:
        action()
    except kind:
        return
    raise AssertionError(f"{what} must raise {kind.__name__}")
