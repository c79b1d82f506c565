"""An experiment from images to tables: features are extracted once, then every table is computed from them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from oodles.bench.run import benchmark, evaluate_detectors
from oodles.data.loaders import ImageLoader
from oodles.data.readers import ImageSet
from oodles.data.transforms import Transform
from oodles.detectors import Detector, fit_together, parse
from oodles.detectors.network_detector import layers_of, steps_of, tuning_summary
from oodles.distributed.processes import current
from oodles.errors import DataError
from oodles.features import Features
from oodles.metrics import Row
from oodles.network.forward import HeadName
from oodles.network.reuse import extract_each
from oodles.network.wanted import Wanted
from oodles.paper.sweep import SWEEP_GRID, SweepPoint, sweep
from oodles.paper.tables import detectors_of
from oodles.selection.tuning import MAX_IMAGES, tune
from oodles.store import is_store

ID_SETS = ("train", "test")


@dataclass
class Tables:
    """The results: rows by table, the sweep's points, and each run's accuracy."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    points: list[SweepPoint] = field(default_factory=list)
    accuracy: dict[str, float] = field(default_factory=dict)

    def all_rows(self) -> list[Row]:
        """Every row once: those of the tables first, then those that only the sweep has."""
        once: dict[tuple[str, str, str], Row] = {}
        swept = (row for point in self.points for row in point.rows)
        for row in (*(row for table in self.rows.values() for row in table), *swept):
            once.setdefault((row.run, row.detector, row.ood_set), row)
        return list(once.values())


class Ready(NamedTuple):
    """A detector that needs more of the network than plain features, fitted and tuned, and what it scores by set."""

    detector: Detector
    features: dict[str, Features]


@dataclass(frozen=True)
class Extraction:
    """How images become features: the transform, the model options and the store; ``tell`` receives messages.

    A store is recognised by the sizes and times of the image files; with ``verify`` the images are read and compared.
    """

    transform: Transform
    store: Path | None = None
    limit: int | None = None
    head: HeadName = None
    device: torch.device | str | None = None
    skip_bad: bool = False
    tell: Callable[[str], None] = lambda _: None
    verify: bool = False

    def features(self, network: nn.Module, sets: Mapping[str, ImageSet]) -> dict[str, Features]:
        """Features of every set; labels are kept for the ID sets only."""
        return self.run(network, sets)[0]

    def run(
        self, network: nn.Module, sets: Mapping[str, ImageSet], deep: Sequence[Detector] = ()
    ) -> tuple[dict[str, Features], list[Ready]]:
        """Features of every set, and the detectors ``deep``, fitted and tuned, with what they need of the network.

        An image passes through the network once for its features, the inner layers of all detectors and the gradients
        of their input steps, and once more for each step.
        """
        found: dict[str, list[Features]] = {}
        for name in sorted(sets, key=lambda name: name != "train"):  # the steps are known after fitting and tuning
            images = sets[name].sample(self.limit)
            steps = [() if name == "train" else steps_of([detector]) for detector in deep]
            wanted = [Wanted(layers_of([detector]), each) for detector, each in zip(deep, steps, strict=True)]
            found[name] = self._one(network, name, images, wanted)
            if name == "train":
                _fit(deep, found[name][1:])
                self._tune(network, images, deep)
        ready = [
            Ready(detector, {name: parts[place] for name, parts in found.items()})
            for place, detector in enumerate(deep, start=1)
        ]
        return {name: found[name][0] for name in sets}, ready

    def _tune(self, network: nn.Module, images: ImageSet, detectors: Sequence[Detector]) -> None:
        held_out = ImageLoader(images.sample(MAX_IMAGES), self.transform, skip_bad=self.skip_bad)
        store = None if self.store is None else self.store / "tuning"
        count = tune(detectors, network, held_out, store=store, **self._options())
        for detector in detectors:
            if tuning_summary(detector):
                self.tell(f"{detector.spec}: {tuning_summary(detector)}, chosen on {count} ID images")

    def _one(self, network: nn.Module, name: str, images: ImageSet, wanted: Sequence[Wanted]) -> list[Features]:
        """Plain features of a set, then features with each of ``wanted``."""
        whole = Wanted.union(wanted)
        passes = f", with {len(whole.layers)} inner layers and {len(whole.steps)} input steps" if any(whole) else ""
        self.tell(f"{name}: {len(images):,} images{passes}")
        labelled = name in ID_SETS
        loader = ImageLoader(images, self.transform, labels=labelled, skip_bad=self.skip_bad)
        features = extract_each(
            network,
            loader,
            [Wanted(), *wanted],
            labels=labelled,
            store=None if self.store is None else self.store / name,
            note=images.name,
            **self._options(),
        )
        if loader.bad:
            self.tell(f"skipped: {loader.problem_summary()}")
        return features

    def _options(self) -> dict[str, Any]:
        """What every extraction is given."""
        return {
            "head": self.head,
            "device": self.device,
            "preprocessing": self.transform.as_record(),
            "verify": self.verify,
            "processes": current(),
        }


def _fit(detectors: Sequence[Detector], rows: Sequence[Features]) -> None:
    """Fit each detector on its features; those that have the same ones in one pass over them."""
    for part in dict.fromkeys(rows):
        fit_together([detector for detector, own in zip(detectors, rows, strict=True) if own is part], part)


def run_tables(
    tables: Sequence[str],
    features: Mapping[str, Features],
    *,
    main: Sequence[str],
    p: float,
    id_set: str = "id",
    run: str = "",
    bootstrap: int = 0,
    deep: Sequence[Ready] = (),
    into: Tables | None = None,
) -> Tables:
    """Every table from features of ``train``, ``test`` and OOD sets; ``into`` adds a run to earlier ones.

    ``deep`` are detectors that need more of the network, as :meth:`Extraction.run` gives them.
    """
    result = into or Tables()
    train, test = (features[name] for name in ID_SETS)
    ood = {name: part for name, part in features.items() if name not in ID_SETS}
    by_table = {table: [parse(spec).spec for spec in detectors_of(table, main, p)] for table in tables}
    wanted = dict.fromkeys(spec for specs in by_table.values() for spec in specs)
    fitted = {each.detector.spec: each for each in deep}
    plain = [parse(spec) for spec in wanted if spec not in fitted]
    rows = benchmark(plain, train=train, test=test, ood=ood, id_set=id_set, run=run, bootstrap=bootstrap)
    for spec, (detector, parts) in fitted.items():
        outside = {name: parts[name] for name in ood}
        rows += evaluate_detectors(
            {spec: detector}, test=parts["test"], ood=outside, id_set=id_set, run=run, bootstrap=bootstrap
        )
    for table, specs in by_table.items():
        if table == "sweep":
            result.points += sweep(SWEEP_GRID, train=train, test=test, ood=ood, id_set=id_set, run=run)
        else:
            result.rows.setdefault(table, []).extend(row for spec in specs for row in rows if row.detector == spec)
    if test.labels is not None:
        result.accuracy[run] = float(test.logits.argmax(dim=1).eq(test.labels).double().mean())
    return result


def load_experiment(folder: Path) -> dict[str, Features]:
    """The features that an experiment stored: ``train``, ``test`` and the OOD sets."""
    parts = {path.name: path for path in sorted(folder.iterdir())} if folder.is_dir() else {}
    stores = {name: path for name, path in parts.items() if is_store(path)}
    missing = [name for name in ID_SETS if name not in stores]
    if missing or len(stores) < 3:
        what = missing[0] if missing else "OOD set besides train and test"
        raise DataError(f"{folder} has no {what}; give a folder written by `oodles bench`, or one with the same layout")
    return {name: Features.load(path) for name, path in stores.items()}
