"""The studies fit the package: each can be imported, and mutants that were explained still exist."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from oodles.detectors import RankEnsemble
from oodles.detectors.default import MEMBERS
from oodles.detectors.support import CHECKS
from oodles.features import Features
from oodles.testing import example_features
from studies import default_detector, mutants
from studies.__main__ import summaries
from studies.default_detector import networks, tables

ROOT = Path(__file__).parents[1]


def test_studies_import_only_what_the_package_has() -> None:
    names = [name for name in summaries() if name != "scale"]  # needs Ray
    code = "\n".join(f"import studies.{name}" for name in names)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_studies_are_listed_and_take_options() -> None:
    def study(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "studies", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert all(name in study().stdout for name in ("reproduction", "bench"))
    assert "--limit" in study("openood", "--help").stdout
    unknown = study("nothing")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "reproduction" in unknown.stderr


def test_mutants_are_changes_of_one_expression() -> None:
    source = "def f(a: int = 1) -> bool:\n    return not a < 2 and f'{a + 1}'\n"
    assert [change for (_, _, change, _), _ in mutants.mutants("x.py", source)] == [
        "a: int=1 → a: int=2",
        "return not a < 2 and f'{a + 1}' → return None",
        "not a < 2 and f'{a + 1}' → not a < 2 or f'{a + 1}'",
        "not a < 2 → a < 2",
        "a < 2 → a <= 2",
        "a < 2 → a >= 2",
        "a < 2 → a < 3",
    ]
    existing = {key for module in mutants.TESTS for key, _ in mutants.mutants(module)}
    assert set(mutants.explained()) <= existing, "run make study NAME=mutants"


@pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")
def test_the_study_scores_sets_of_members_as_the_ensemble_does() -> None:
    train, held_out = example_features(rows=600).split(0.2)
    far = Features(50 * held_out.embedding, head=train.head)
    ensemble = RankEnsemble(detectors=MEMBERS, reduction="fisher", holdout=0, checks=CHECKS).fit(train)
    ensemble.tune(held_out)
    for rows in (held_out, far):
        found = default_detector.combined(
            default_detector.deviations(ensemble, rows), default_detector.SETS[tables.CHOSEN]
        )
        torch.testing.assert_close(found.float(), ensemble.score(rows))


def test_the_study_describes_every_network_once() -> None:
    names = [name for group in networks.GROUPS.values() for name in group]
    assert sorted(names) == sorted(tables.DESCRIPTIONS)
    assert set(default_detector.FAR) | set(networks.SELECTED) <= set(names)
