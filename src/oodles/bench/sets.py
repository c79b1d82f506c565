"""The sets of a benchmark as features: given, or extracted in one pass of the network for all detectors."""

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from oodles.data.batches import LabelsAt
from oodles.data.image_sets import ImageSet
from oodles.data.inputs import Inputs
from oodles.data.loaders import ImageLoader
from oodles.data.transforms import Transform
from oodles.detectors import Detector, fit_together
from oodles.detectors.network_detector import is_tuned, layers_of, steps_of, tuning_summary
from oodles.distributed.processes import current
from oodles.errors import ArgumentError, DataError, FitWarning
from oodles.features import Features
from oodles.network.extraction import extract_each
from oodles.network.onnx_model import as_model
from oodles.network.taps import unwrap
from oodles.selection.tuning import MAX_IMAGES, tune
from oodles.store import is_store

Source = Features | ImageSet | Iterable[Any]
"""A set: its features, or images or batches for the network."""

FeaturesFor = dict[Detector | None, Features]
"""The features of a set for each detector, and those for any detector that needs only embeddings and logits."""

ID_SETS = TRAIN, TEST = ("train", "test")


def fit_on_sets(
    detectors: Sequence[Detector],
    sets: Mapping[str, Source],
    *,
    model: nn.Module | str | Path | None = None,
    store: str | Path | None = None,
    labels: LabelsAt = True,
    preprocessing: Transform | None = None,
    skip_bad: bool = False,
    tell: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> dict[str, FeaturesFor]:
    """Fit the detectors on the set ``train``, tune those that need it, and return the features of every set.

    Without ``model`` the sets are features. With it they are extracted: an image passes through the network once for
    its features, the inner layers of all detectors and the gradients of their input steps, and once more for each step.
    Labels are kept for ``train`` and ``test`` only. ``preprocessing`` and ``skip_bad`` are for image sets; ``tell``
    receives messages; ``options`` are passed to :func:`oodles.extract`. Processes that have joined (see
    :func:`oodles.distributed.join`) share the extraction. Detectors that learn from labels or layers that
    are not there are left out, with a warning.
    """
    if model is None:
        if options or store is not None:
            name = next(iter(options), "store")
            raise ArgumentError(
                f"{name}= is for sets that the network runs on; give model= and loaders too, or leave it out"
            )
        return _fit_on_features(detectors, sets)
    model = as_model(model)
    estimate = _Estimate([len(each) if isinstance(each, ImageSet) else None for each in sets.values()], tell)
    options = {"processes": current(), "progress": True, **options}
    modules = {name for name, _ in unwrap(model).named_modules()}
    foreign = [each for each in detectors if not {name.partition(":")[0] for name in layers_of([each])} <= modules]
    detectors = _without(foreign, detectors, f"{type(unwrap(model)).__name__} does not have their layers")
    home = None if store is None else Path(store)
    found: dict[str, FeaturesFor] = {}
    for name in sorted(sets, key=lambda name: name != TRAIN):  # the steps are known after fitting and tuning
        if isinstance(sets[name], Features):
            raise ArgumentError(f"{name} is features, which model= is not needed for; give loaders, or no model")
        loader = _loader(sets[name], preprocessing, labels=name in ID_SETS, skip_bad=skip_bad)
        requests = [(layers_of([each]), () if name == TRAIN else steps_of([each])) for each in detectors]
        tell(_announcement(name, loader, len(layers_of(detectors)), 0 if name == TRAIN else len(steps_of(detectors))))
        parts = extract_each(
            model,
            loader,
            [((), ()), *requests],
            labels=labels if name in ID_SETS else False,
            store=None if home is None else home / name,
            note=loader.images.name if isinstance(loader, ImageLoader) else "",
            on_batch=estimate,
            **options,
        )
        if isinstance(loader, ImageLoader) and loader.skipped:
            tell(f"skipped: {loader.problem_summary()}")
        found[name] = dict(zip((None, *detectors), parts, strict=True))
        if name == TRAIN:
            detectors = _with_labels(detectors, parts[0])
            tell(f"fitting {len(detectors)} detectors on {len(parts[0]):,} rows")
            for part in dict.fromkeys(parts):
                fit_together([each for each in detectors if found[name][each] is part], part)
            if not all(map(is_tuned, detectors)):
                tell("tuning on ID images what detectors choose with the network at hand")
            count = tune(
                detectors,
                model,
                _tuning_images(loader),
                store=None if home is None else home / "tuning",
                labels=labels,
                **options,
            )
            for each in filter(tuning_summary, detectors):
                tell(f"{each.spec}: {tuning_summary(each)}, chosen on {count} ID images")
    return {name: found[name] for name in sets}


class _Estimate:
    """Tells how long the network takes for all images of a benchmark, once it has run on two batches.

    The first one does not count: the last layer is located on it.
    """

    def __init__(self, sizes: Sequence[int | None], tell: Callable[[str], None]) -> None:
        self._sizes, self._tell, self._began = sizes, tell, 0.0
        self._rows = 0

    def __call__(self, number: int, inputs: Inputs) -> None:
        if number == 1:
            self._rows, self._began = len(inputs), time.monotonic()
        elif number == 2 and None not in self._sizes:
            total = sum(size or 0 for size in self._sizes)
            seconds = (time.monotonic() - self._began) * total / self._rows / current().size
            length = f"{seconds:.0f} seconds" if seconds < 100 else f"{seconds / 60:.0f} minutes"
            self._tell(f"the network takes about {length} for all {total:,} images, and longer with input steps")
            self._sizes = [None]  # it is said once


def extract_sets(model: nn.Module, sets: Mapping[str, Source], **options: Any) -> dict[str, Features]:
    """Extract embeddings and logits of every set; ``options`` are those of :func:`fit_on_sets`."""
    return {name: parts[None] for name, parts in fit_on_sets((), sets, model=model, **options).items()}


def load_sets(folder: Path) -> dict[str, Features]:
    """Load the features that a benchmark stored: ``train``, ``test`` and the OOD sets."""
    parts = {path.name: path for path in sorted(folder.iterdir())} if folder.is_dir() else {}
    stores = {name: path for name, path in parts.items() if is_store(path)}
    missing = [name for name in ID_SETS if name not in stores]
    if missing or len(stores) < 3:
        what = missing[0] if missing else "OOD set besides train and test"
        raise DataError(f"{folder} has no {what}; give a folder written by `oodles bench`, or one with the same layout")
    return {name: Features.load(path) for name, path in stores.items()}


def _fit_on_features(detectors: Sequence[Detector], sets: Mapping[str, Source]) -> dict[str, FeaturesFor]:
    features: dict[str, Features] = {}
    for name, part in sets.items():
        if not isinstance(part, Features):
            raise ArgumentError(f"{name} is not features; give model= to extract them, or the result of extract(...)")
        features[name] = part
    untuned = next((each for each in detectors if not is_tuned(each)), None)
    if untuned is not None:
        raise ArgumentError(f"{untuned.spec} has to be tuned on the network; give model=, and loaders for features")
    detectors = _with_labels(detectors, features[TRAIN])
    fit_together(detectors, features[TRAIN])
    return {name: dict.fromkeys((None, *detectors), part) for name, part in features.items()}


def _with_labels(detectors: Sequence[Detector], train: Features) -> list[Detector]:
    """Leave out the detectors that learn from labels, if there are none."""
    unlabelled = [] if train.holds("labels") else [each for each in detectors if "labels" in each.learns_from]
    return _without(unlabelled, detectors, f"{train} has no labels")


def _without(unsuitable: Sequence[Detector], detectors: Sequence[Detector], why: str) -> list[Detector]:
    """Leave detectors out with a warning, unless none would be left: then the first of them fails with its reason."""
    if not unsuitable or len(unsuitable) == len(detectors):
        return list(detectors)
    specs = ", ".join(each.spec for each in unsuitable)
    warnings.warn(f"left out, because {why}: {specs}", FitWarning, stacklevel=5)
    return [each for each in detectors if each not in unsuitable]


def _loader(source: Source, preprocessing: Transform | None, *, labels: bool, skip_bad: bool) -> Any:
    if not isinstance(source, ImageSet):
        return source
    if preprocessing is None:
        raise ArgumentError(f"{source.name} is a set of images; give preprocessing=, a Transform, or an ImageLoader")
    return ImageLoader(source, preprocessing, labels=labels, skip_bad=skip_bad)


def _tuning_images(loader: Any) -> Any:
    """A random sample of the images of an image loader; of other loaders, the first batches are used."""
    if not isinstance(loader, ImageLoader):
        return loader
    images = loader.images.sample(MAX_IMAGES)
    return ImageLoader(images, loader.transform, skip_bad=loader.skip_bad, batch_size=loader.batch_size)


def _announcement(name: str, loader: Any, layers: int, steps: int) -> str:
    count = f": {len(loader.images):,} images" if isinstance(loader, ImageLoader) else ""
    passes = f", with {layers} inner layers and {steps} input steps" if layers or steps else ""
    return f"{name}{count}{passes}"
