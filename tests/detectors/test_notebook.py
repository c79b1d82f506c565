"""What a detector shows of itself: the call that makes it, what it was fitted on, and a table in notebooks."""

import re
from collections.abc import Callable
from typing import get_type_hints

import torch

from oodles import Guard, Verdict, default_detector, extract
from oodles.deploy.verdict import MAX_ROWS
from oodles.detectors import DICE, KNN, MSP, Mahalanobis, RankEnsemble, ReAct
from oodles.detectors.arguments import MAX_SHOWN
from oodles.features import Features
from oodles.testing import example_features


def cells(html: str) -> list[list[str]]:
    return [re.findall(r"<t[dh]>(.*?)</t[dh]>", line) for line in re.findall(r"<tr>(.*?)</tr>", html)]


def test_a_fitted_detector_says_what_it_was_fitted_on_and_messages_do_not(features: Features) -> None:
    detector = DICE(p=0.5, shape=ReAct(percentile=90))
    call = "DICE(p=0.5, shape=(ReAct(percentile=90, per=all),), score=energy)"
    assert repr(detector) == str(detector) == call
    detector.fit(features)
    assert repr(detector) == f"<{call}, fitted on (width, classes) (12, 4)>"
    assert str(detector) == f"{detector}" == call


def test_members_of_a_fitted_ensemble_are_shown_by_their_calls() -> None:
    ensemble = RankEnsemble(detectors=["energy", "knn(5)"]).fit(example_features(width=12, classes=4))
    call = "RankEnsemble(detectors=(Energy(temperature=1.0), KNN(k=5, bank=10000)), reduction=mean, holdout=0.2)"
    assert str(ensemble) == call
    assert repr(ensemble) == f"<{call}, fitted on (width, classes) (12, 4)>"
    assert str(Mahalanobis(layers=("layer2",))) == "Mahalanobis(layers=('layer2',), epsilon=0.0)"


def test_a_notebook_shows_arguments_and_shapes_of_what_was_learned(features: Features) -> None:
    assert ": not fitted<" in KNN(k=5)._repr_html_()
    assert cells(KNN(k=5)._repr_html_()) == [["argument", ""], ["k", "5"], ["bank", "10000"]]
    html = KNN(k=5).fit(features)._repr_html_()
    assert ": fitted<" in html
    assert ["bank_", "(120, 12) float32"] in cells(html)
    assert ["shape_", "(2,) int64"] in cells(html)
    assert ": nothing to fit<" in MSP()._repr_html_()


def test_a_large_ensemble_is_cut_short() -> None:
    lines = cells(default_detector().fit(example_features(rows=1000))._repr_html_())
    assert len(lines) <= MAX_SHOWN + 10
    assert any(re.fullmatch(r"and \d+ more", line[0]) for line in lines)


def test_arguments_cannot_inject_html() -> None:
    html = Mahalanobis(layers=("<script>alert(1)</script>",))._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_what_a_notebook_shows_of_guards_verdicts_explanations_features_and_thresholds() -> None:
    torch.manual_seed(0)
    rows, names = torch.randn(400, 4), ("<script>", "b")
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    guard = Guard.fit(model, [rows], detector="rank_ensemble(['energy', 'knn(5)'])", classes=names)
    verdict, (explanation,) = guard(rows[:30]), guard.explain(rows[:1])
    features = extract(model, [rows], classes=names)
    shown = [each._repr_html_() for each in (guard, verdict, explanation, features, guard.threshold)]
    for html in shown:
        assert html.startswith("<table>")
        assert "<script>" not in html
    assert len(cells(shown[1])) == 1 + MAX_ROWS
    assert "20 of 30 inputs" in shown[1]
    assert [row[0] for row in cells(shown[2])] == ["detector", *(finding.spec for finding in explanation.findings)]
    assert ["class names", "&lt;script&gt;, b"] in cells(shown[3])
    assert get_type_hints(Guard)["__call__"] == Callable[..., Verdict[torch.Tensor]], "for type checkers"
