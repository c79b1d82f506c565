"""An experiment from images to tables: features are extracted once, then every table is computed from them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from torch import nn

from oodles.bench.run import benchmark, evaluate_detectors
from oodles.data.loaders import ImageLoader
from oodles.data.readers import ImageSet
from oodles.data.transforms import Transform
from oodles.detectors import Detector, fit_together, parse
from oodles.detectors.network_detector import layers_of, steps_of, tuning_summary
from oodles.errors import DataError
from oodles.features import Features
from oodles.metrics import Row
from oodles.network.extraction import extract
from oodles.network.forward import HeadName
from oodles.paper.sweep import SWEEP_GRID, SweepPoint, sweep
from oodles.paper.tables import detectors_of
from oodles.selection.tuning import MAX_IMAGES, tune
from oodles.steps import Step
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


@dataclass(frozen=True)
class Extraction:
    """How images become features: the transform, the model options and the store; ``tell`` receives messages."""

    transform: Transform
    store: Path | None = None
    limit: int | None = None
    head: HeadName = None
    device: str | None = None
    skip_bad: bool = False
    tell: Callable[[str], None] = lambda _: None

    def features(self, network: nn.Module, sets: Mapping[str, ImageSet]) -> dict[str, Features]:
        """Features of every set; labels are kept for the ID sets only."""
        return {name: self._one(network, name, images.sample(self.limit)) for name, images in sets.items()}

    def passes(
        self, network: nn.Module, sets: Mapping[str, ImageSet], detectors: Sequence[Detector]
    ) -> dict[str, Features]:
        """Features of every set with the layers and input steps that the detectors need; fits and tunes the detectors.

        Each pass runs once, however many detectors need it. If there is a store, these features go into a subfolder of
        ``passes`` that is named after their layers and steps.
        """
        layers = layers_of(detectors)
        images = sets["train"].sample(self.limit)
        train = self._one(network, "train", images, layers)
        fit_together(detectors, train)
        held_out = ImageLoader(images.sample(MAX_IMAGES), self.transform, skip_bad=self.skip_bad)
        tune(detectors, network, held_out, head=self.head, device=self.device)
        for detector in detectors:
            if tuning_summary(detector):
                self.tell(f"{detector.spec}: {tuning_summary(detector)}, chosen on {len(held_out.names)} ID images")
        steps = steps_of(detectors)
        rest = {name: images.sample(self.limit) for name, images in sets.items() if name != "train"}
        return {"train": train} | {name: self._one(network, name, each, layers, steps) for name, each in rest.items()}

    def _one(
        self, network: nn.Module, name: str, images: ImageSet, layers: Sequence[str] = (), steps: Sequence[Step] = ()
    ) -> Features:
        extra = [*layers, *(f"{step.name} {step.identity}" for step in steps)]
        passes = f", with {len(layers)} inner layers and {len(steps)} input steps" if extra else ""
        self.tell(f"{name}: {len(images):,} images{passes}")
        labelled = name in ID_SETS
        loader = ImageLoader(images, self.transform, labels=labelled, skip_bad=self.skip_bad)
        part = Path("passes", sha256("\n".join(extra).encode()).hexdigest()[:12], name) if extra else Path(name)
        features = extract(
            network,
            loader,
            head=self.head,
            layers=layers,
            steps=steps,
            device=self.device,
            labels=labelled,
            store=None if self.store is None else self.store / part,
            note=images.name,
            preprocessing=self.transform.as_record(),
        )
        if loader.bad:
            self.tell(f"skipped: {loader.problem_summary()}")
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
    """Every table from features of ``train``, ``test`` and OOD sets; ``into`` adds a run to earlier ones.

    ``deep`` are detectors that need more of the network, fitted by the :meth:`Extraction.passes` that gave ``passes``.
    """
    result = into or Tables()
    train, test = (features[name] for name in ID_SETS)
    ood = {name: part for name, part in features.items() if name not in ID_SETS}
    by_table = {table: [parse(spec).spec for spec in detectors_of(table, main, p)] for table in tables}
    wanted = dict.fromkeys(spec for specs in by_table.values() for spec in specs)
    fitted = {detector.spec: detector for detector in deep}
    plain = [parse(spec) for spec in wanted if spec not in fitted]
    rows = benchmark(plain, train=train, test=test, ood=ood, id_set=id_set, run=run, bootstrap=bootstrap)
    if passes is not None:
        outside = {name: part for name, part in passes.items() if name not in ID_SETS}
        rows += evaluate_detectors(
            fitted, test=passes["test"], ood=outside, id_set=id_set, run=run, bootstrap=bootstrap
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
