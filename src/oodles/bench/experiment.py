"""An experiment from images to tables: features once into a store, then every table from them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from oodles.bench.datasets import ImageLoader, ImageSet, Transform
from oodles.bench.run import benchmark
from oodles.bench.sweep import SWEEP_GRID, SweepPoint, sweep
from oodles.bench.tables import detectors_of
from oodles.detectors import parse
from oodles.errors import DataError
from oodles.extraction import extract
from oodles.features import Features
from oodles.metrics import Row
from oodles.store import is_store

ID_SETS = ("train", "test")


@dataclass
class Tables:
    """What came out: rows by table, the sweep's points, and each run's accuracy."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    points: list[SweepPoint] = field(default_factory=list)
    accuracy: dict[str, float] = field(default_factory=dict)

    def all_rows(self) -> list[Row]:
        """Every row once: the tables' first, then what the sweep adds to them."""
        once: dict[tuple[str, str, str], Row] = {}
        swept = (row for point in self.points for row in point.rows)
        for row in (*(row for table in self.rows.values() for row in table), *swept):
            once.setdefault((row.run, row.detector, row.ood_set), row)
        return list(once.values())


@dataclass(frozen=True)
class Extraction:
    """How images become features: the transform and where they are kept; ``tell`` hears what happens."""

    transform: Transform
    store: Path | None = None
    limit: int | None = None
    layer: str | None = None
    device: str | None = None
    skip_bad: bool = False
    tell: Callable[[str], None] = lambda _: None

    def features(self, network: nn.Module, sets: Mapping[str, ImageSet]) -> dict[str, Features]:
        """Features of every set; labels are kept of the ID sets alone."""
        return {name: self._one(network, name, images.sample(self.limit)) for name, images in sets.items()}

    def _one(self, network: nn.Module, name: str, images: ImageSet) -> Features:
        self.tell(f"{name}: {len(images):,} images")
        labelled = name in ID_SETS
        loader = ImageLoader(images, self.transform, labels=labelled, skip_bad=self.skip_bad)
        home = None if self.store is None else self.store / name
        features = extract(
            network, loader, layer=self.layer, device=self.device, labels=labelled, store=home, note=images.name
        )
        if loader.bad:
            self.tell(f"left out: {loader.complaint()}")
        if labelled and images.classes and len(images.classes) != features.classes:
            folders = f"{len(images.classes)} class folders for {features.classes} classes"
            self.tell(f"{name}: {folders} of the model, so labels and accuracy may not mean what they say")
        return features


def run_tables(
    tables: Sequence[str],
    features: Mapping[str, Features],
    *,
    main: Sequence[str],
    p: float,
    id_set: str = "id",
    run: str = "",
    bootstrap: int = 0,
    into: Tables | None = None,
) -> Tables:
    """Every table from features that hold ``train``, ``test`` and OOD sets; ``into`` adds a run to earlier ones."""
    result = into or Tables()
    train, test = (features[name] for name in ID_SETS)
    ood = {name: part for name, part in features.items() if name not in ID_SETS}
    asked = {table: [parse(spec).spec for spec in detectors_of(table, main, p)] for table in tables}
    wanted = dict.fromkeys(spec for specs in asked.values() for spec in specs)
    detectors = [parse(spec) for spec in wanted]
    rows = benchmark(detectors, train=train, test=test, ood=ood, id_set=id_set, run=run, bootstrap=bootstrap)
    for table, specs in asked.items():
        if table == "sweep":
            result.points += sweep(SWEEP_GRID, train=train, test=test, ood=ood, id_set=id_set, run=run)
        else:
            result.rows.setdefault(table, []).extend(row for spec in specs for row in rows if row.detector == spec)
    if test.labels is not None:
        result.accuracy[run] = float(test.logits.argmax(dim=1).eq(test.labels).double().mean())
    return result


def load_experiment(folder: Path) -> dict[str, Features]:
    """The features an experiment left in its store: ``train``, ``test`` and the OOD sets."""
    parts = {path.name: path for path in sorted(folder.iterdir())} if folder.is_dir() else {}
    stores = {name: path for name, path in parts.items() if is_store(path)}
    lacking = [name for name in ID_SETS if name not in stores]
    if lacking or len(stores) < 3:
        what = f"no {lacking[0]}" if lacking else "no OOD set beside train and test"
        raise DataError(f"{folder} holds {what}; give a folder that `oodles bench` filled, or one laid out alike")
    return {name: Features.load(path) for name, path in stores.items()}
