"""An experiment from images to tables: features once into a store, then every table from them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Literal

from torch import nn

from oodles.bench.datasets import ImageLoader, ImageSet, Transform
from oodles.bench.run import benchmark, judge
from oodles.bench.sweep import SWEEP_GRID, SweepPoint, sweep
from oodles.bench.tables import detectors_of
from oodles.detectors import Detector, Mahalanobis, fit_together, parse
from oodles.detectors.gradient import SteppedDetector
from oodles.errors import DataError
from oodles.extraction import extract
from oodles.features import Features
from oodles.metrics import Row
from oodles.perturbation import Step
from oodles.store import is_store
from oodles.tuning import ROWS, layers_of, steps_of, tune

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
    layer: str | Literal[False] | None = None
    device: str | None = None
    skip_bad: bool = False
    tell: Callable[[str], None] = lambda _: None

    def features(self, network: nn.Module, sets: Mapping[str, ImageSet]) -> dict[str, Features]:
        """Features of every set; labels are kept of the ID sets alone."""
        return {name: self._one(network, name, images.sample(self.limit)) for name, images in sets.items()}

    def passes(
        self, network: nn.Module, sets: Mapping[str, ImageSet], detectors: Sequence[Detector]
    ) -> dict[str, Features]:
        """Features of every set with the layers and input steps the detectors need, who are fitted and tuned here.

        Each pass is run once, whichever of them asked for it. Where a store is kept, it lies beside the plain one,
        under a name that tells the passes apart.
        """
        layers = layers_of(detectors)
        images = sets["train"].sample(self.limit)
        train = self._one(network, "train", images, layers)
        fit_together(detectors, train)
        for remark in dict.fromkeys(remark for detector in detectors for remark in detector.remarks):
            self.tell(remark)
        held = ImageLoader(images.sample(ROWS), self.transform, skip_bad=self.skip_bad)
        tune(detectors, network, held, layer=self.layer, device=self.device)
        for detector in detectors:
            if isinstance(detector, SteppedDetector | Mahalanobis) and detector.epsilon is None:
                self.tell(f"{detector.spec}: epsilon {detector.chosen:g}, chosen on {len(held.names)} ID images")
        steps = steps_of(detectors)
        rest = {name: images for name, images in sets.items() if name != "train"}
        return {"train": train} | {
            name: self._one(network, name, images.sample(self.limit), layers, steps) for name, images in rest.items()
        }

    def _one(
        self, network: nn.Module, name: str, images: ImageSet, layers: Sequence[str] = (), steps: Sequence[Step] = ()
    ) -> Features:
        extra = [*layers, *(f"{step.name} {step.identity}" for step in steps)]
        after = f", with {len(layers)} inner layers and {len(steps)} input steps" if extra else ""
        self.tell(f"{name}: {len(images):,} images{after}")
        labelled = name in ID_SETS
        loader = ImageLoader(images, self.transform, labels=labelled, skip_bad=self.skip_bad)
        part = Path("passes", sha256("\n".join(extra).encode()).hexdigest()[:12], name) if extra else Path(name)
        features = extract(
            network,
            loader,
            layer=self.layer,
            layers=layers,
            steps=steps,
            device=self.device,
            labels=labelled,
            store=None if self.store is None else self.store / part,
            note=images.name,
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
    deep: Sequence[Detector] = (),
    passes: Mapping[str, Features] | None = None,
    into: Tables | None = None,
) -> Tables:
    """Every table from features that hold ``train``, ``test`` and OOD sets; ``into`` adds a run to earlier ones.

    ``deep`` are detectors that need more of the network, fitted by :meth:`Extraction.passes`, which gave ``passes``.
    """
    result = into or Tables()
    train, test = (features[name] for name in ID_SETS)
    ood = {name: part for name, part in features.items() if name not in ID_SETS}
    asked = {table: [parse(spec).spec for spec in detectors_of(table, main, p)] for table in tables}
    wanted = dict.fromkeys(spec for specs in asked.values() for spec in specs)
    fitted = {detector.spec: detector for detector in deep}
    plain = [parse(spec) for spec in wanted if spec not in fitted]
    rows = benchmark(plain, train=train, test=test, ood=ood, id_set=id_set, run=run, bootstrap=bootstrap)
    if passes is not None:
        outside = {name: part for name, part in passes.items() if name not in ID_SETS}
        rows += judge(fitted, test=passes["test"], ood=outside, id_set=id_set, run=run, bootstrap=bootstrap)
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
