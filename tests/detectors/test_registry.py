"""The one list of detectors, and detectors defined outside the package."""

import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from PIL import Image

from oodles import detectors
from oodles.detectors import Detector, detector_list, parse, register, registry
from oodles.errors import ArgumentError
from oodles.testing import check_detector, example_features

NORM = '''
import torch
from oodles import Detector, register


@register("my_norm", summary="distance to the mean embedding", paper="nobody, 2026")
class MyNorm(Detector):
    """Minus the distance to the mean embedding, to some power."""

    learns_from = ("embedding",)
    scores_from = ("embedding",)
    mean_: torch.Tensor

    def __init__(self, *, power: float = 1.0) -> None:
        super().__init__()
        self.power = power

    def begin(self):
        from oodles.detectors.statistics import Mean

        return {"mean": Mean()}

    def learn(self, statistics, head):
        self.mean_ = statistics["mean"].value().float()

    def forward(self, embedding, logits, *others):
        return -torch.linalg.vector_norm(embedding - self.mean_, dim=1) ** self.power


class KNN(MyNorm):
    """Not the built-in of the same name."""
'''
MODEL = """
import torch
from torch import nn


def tiny():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 2))
"""


@pytest.fixture
def outside(tmp_path):
    """A folder with a package of the user's own, and a way to run Python or oodles there in a new process."""
    package = tmp_path / "mypkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "mod.py").write_text(NORM)
    (tmp_path / "nets.py").write_text(MODEL)

    def run(*arguments, **environment):
        options = {"capture_output": True, "text": True, "timeout": 120, "check": False}
        env = {**os.environ, **environment}
        done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, env=env, **options)
        return done.returncode, done.stdout, done.stderr

    return tmp_path, run


def python(run, code, **environment):
    code, out, err = run("-c", textwrap.dedent(code), **environment)
    assert code == 0, err
    return out


# The list ---------------------------------------------------------------------------------------


def test_every_entry_is_complete_and_found_under_both_names():
    names = [entry.name for entry in registry.BUILT_IN]
    assert len(names) == len(set(names)) > 40
    for entry in registry.BUILT_IN:
        assert entry.summary, entry.name
        assert "\n" not in entry.summary
        assert getattr(detectors, entry.kind.__name__) is entry.kind
        assert registry.find_class(entry.kind.__name__) is entry.kind
        assert entry.kind.text_name() == entry.name
        assert entry.kind.__name__ in detectors.__all__
        if entry.name != "default":  # named after its role
            assert entry.kind.__name__.lower() == entry.name.replace("_", ""), entry.name


def test_detector_list_derives_from_the_registry():
    listed = [text for entry in registry.BUILT_IN for text in (entry.listed or (entry.name,)) if entry.listed != ()]
    assert [detector.spec for detector in detector_list()] == [parse(text).spec for text in listed]


def test_unknown_attributes_are_refused():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = detectors.nonsense


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("knn", type("Mine", (Detector,), {}), "KNN already has that name"),
        ("Big", type("Mine", (Detector,), {}), "lower-case"),
        ("two words", type("Mine", (Detector,), {}), "lower-case"),
        ("mine", int, "derive from oodles.Detector"),
        ("mine", parse, "derive from oodles.Detector"),
    ],
)
def test_bad_registrations_are_refused(name, kind, words):
    before = registry.entries()
    with pytest.raises(ArgumentError, match=words):
        register(name)(kind)
    assert registry.entries() == before


def test_a_subclass_does_not_inherit_the_name():
    class Mine(detectors.KNN):
        pass

    assert detectors.KNN().spec == "knn"
    assert Mine().spec.endswith("Mine")
    assert Mine().spec != "knn"


# Outside the package ----------------------------------------------------------------------------


def test_a_detector_from_outside_passes_the_conformance_suite(outside, monkeypatch):
    folder, _ = outside
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(registry, "_BY_NAME", dict(registry._BY_NAME))
    monkeypatch.delitem(sys.modules, "mypkg.mod", raising=False)
    detector = parse("mypkg.mod:MyNorm(2.0)")
    assert detector.spec == "my_norm(power=2.0)"
    assert parse("my_norm(power=2.0)").arguments() == {"power": 2.0}
    assert "my_norm" in [each.spec for each in detector_list()]
    check_detector(detector)
    check_detector(parse("rank_ensemble(('mypkg.mod:MyNorm(2.0)', 'energy'))"))


def test_save_in_one_process_and_load_in_another(outside):
    folder, run = outside
    features = example_features()
    features.save(folder / "features")
    out = python(
        run,
        """
        import oodles as ood, mypkg.mod
        features = ood.Features.load("features")
        detector = ood.parse("my_norm(2.0)").fit(features)
        ood.save_detector(detector, "saved")
        ood.save_detector(mypkg.mod.KNN().fit(features), "namesake")
        rows = ood.benchmark([detector], train=features, test=features, ood={"other": features[:50]})
        print(rows[0].detector, detector.score(features).double().sum().item())
        """,
    )
    name, total = out.split()
    assert name == "my_norm(power=2.0)"
    again = python(
        run,
        """
        import mypkg.mod, oodles as ood
        detector = ood.load_detector("saved")
        assert type(detector) is mypkg.mod.MyNorm and detector.power == 2.0
        assert type(ood.load_detector("namesake")) is mypkg.mod.KNN
        print(detector.score(ood.Features.load("features")).double().sum().item())
        """,
    )
    assert float(again) == float(total)
    code, _, err = run("-c", "import oodles; oodles.load_detector('saved')")
    assert code != 0
    assert "mypkg.mod:MyNorm is unknown; import the module that defines it first" in err
    assert json.loads((folder / "namesake" / "detector.json").read_text())["detector"]["class"] == "mypkg.mod:KNN"


@pytest.mark.slow
def test_on_the_command_line(outside):
    folder, run = outside
    features = example_features()
    features.save(folder / "features")
    for arguments in (
        ("fit", "features", "--detector", "mypkg.mod:MyNorm(2.0)", "--out", "by_path"),
        ("--plugin", "mypkg.mod", "fit", "features", "--detector", "my_norm(2.0)", "--out", "by_name"),
    ):
        code, _, err = run("-m", "oodles", *arguments)
        assert code == 0, err
        assert "my_norm(power=2.0)" in err
    code, out, err = run("-m", "oodles", "--plugin", "mypkg.mod", "score", "by_path", "features", "--json")
    assert code == 0, err
    verdicts = json.loads(out)["verdicts"]
    assert len(verdicts) == len(features)
    code, out, err = run("-m", "oodles", "score", "by_path", "features")
    assert code == 2
    assert "--plugin" in err
    code, out, err = run("-m", "oodles", "--plugin", "mypkg.mod", "detectors")
    assert "my_norm          distance to the mean embedding (nobody, 2026)" in out
    code, _, err = run("-m", "oodles", "--plugin", "no.such.module", "detectors")
    assert code == 2
    assert "'no.such.module' cannot be imported" in err


def test_benchmarked_on_the_command_line(outside):
    folder, run = outside
    generator = np.random.default_rng(0)
    for place in ("train/a", "train/b", "test/a", "test/b", "ood/x"):
        (folder / place).mkdir(parents=True)
        for number in range(12):
            pixels = generator.integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / place / f"{number}.png")
    code, out, err = run(
        *("-m", "oodles", "bench", "--model", "nets:tiny", "--size", "8", "--train", "train", "--test", "test"),
        *("--ood", "noise=ood", "--detector", "mypkg.mod:MyNorm", "--detector", "energy", "--json"),
    )
    assert code == 0, err
    assert [row["detector"] for row in json.loads(out)] == ["my_norm", "energy"]


@pytest.mark.slow
def test_an_installed_package_announces_its_detectors(outside):
    folder, run = outside
    info = folder / "mypkg-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mypkg\nVersion: 1.0\n")
    points = "[oodles.detectors]\nmy_norm = mypkg.mod:MyNorm\nbroken = mypkg.gone:Nothing\n"
    (info / "entry_points.txt").write_text(points)
    code, out, err = run("-m", "oodles", "detectors", PYTHONPATH=str(folder))
    assert code == 0, err
    assert "my_norm" in out
    assert "broken (mypkg.gone:Nothing) cannot be loaded" in err
    out = python(
        run,
        """
        import warnings, oodles as ood
        warnings.simplefilter("ignore")
        features = ood.testing.example_features()
        ood.save_detector(ood.parse("my_norm").fit(features), "saved")
        """,
        PYTHONPATH=str(folder),
    )
    code, _, err = run("-W", "ignore", "-c", "import oodles; oodles.load_detector('saved')", PYTHONPATH=str(folder))
    assert code == 0, err
