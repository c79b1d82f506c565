import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oodles
from oodles import functional
from oodles.detectors import (
    DICE,
    MSP,
    STAGES,
    WHOLES,
    BottomContribution,
    Clip,
    Energy,
    Entropy,
    LogitDetector,
    MaxLogit,
    RandomContribution,
    ReAct,
    TopContribution,
    UnitDropout,
    UnitPruning,
    WeightDropout,
    detector_list,
    parse,
)
from oodles.errors import ArgumentError
from oodles.features import Features

# Reading and writing ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("energy", "energy"),
        ("  energy\n", "energy"),
        ("dice", "dice(0.9)+energy"),
        ("dice(0.7)", "dice(0.7)+energy"),
        ("dice(p=0.7)", "dice(0.7)+energy"),
        ("dice(0)", "dice(0)+energy"),
        ("react", "react(90)+energy"),
        ("react(95)+react(threshold=1.5)+dice(0.1)+msp(2)", "react(95)+react(threshold=1.5)+dice(0.1)+msp(2)"),
        ("react(threshold=-0.5)", "react(threshold=-0.5)+energy"),
        ("energy(1)", "energy"),
        ("msp(temperature=1000)", "msp(1000)"),
        ("random_k(0.5, 3)", "random_k(0.5, seed=3)+energy"),
        ("random_k(0.5, seed=0)", "random_k(0.5)+energy"),
        ("unit_pruning(0.3, by='activation')+entropy", "unit_pruning(0.3, by='activation')+entropy"),
    ],
)
def test_texts_and_their_specs(text: str, spec: str) -> None:
    assert parse(text).spec == spec
    assert parse(spec).spec == spec


@pytest.mark.parametrize(
    ("detector", "spec"),
    [
        (MSP(), "msp"),
        (MSP(temperature=10), "msp(10)"),
        (MaxLogit(), "max_logit"),
        (Energy(temperature=0.5), "energy(0.5)"),
        (Entropy(), "entropy"),
        (ReAct(), "react(90)+energy"),
        (ReAct(percentile=95, score=functional.msp), "react(95)+msp"),
        (ReAct(threshold=1.0), "react(threshold=1.0)+energy"),
        (DICE(), "dice(0.9)+energy"),
        (DICE(p=0.7, shape=Clip(percentile=90)), "react(90)+dice(0.7)+energy"),
        (DICE(p=0.7, score=partial(functional.msp, temperature=2)), "dice(0.7)+msp(2)"),
        (DICE(p=0.7, shape=[Clip(percentile=97), Clip(threshold=2)]), "react(97)+react(threshold=2)+dice(0.7)+energy"),
        (LogitDetector(sparsify=WeightDropout(p=0.3, seed=4)), "weight_dropout(0.3, seed=4)+energy"),
        (LogitDetector(sparsify=UnitPruning(by="activation")), "unit_pruning(0.9, by='activation')+energy"),
    ],
)
def test_named_detectors_write_the_same_language(detector: LogitDetector, spec: str) -> None:
    assert detector.spec == spec
    assert parse(spec).spec == spec


def test_every_detector_of_the_list_is_read_back() -> None:
    specs = [detector.spec for detector in detector_list()]
    assert len(set(specs)) == len(specs)
    for spec in specs:
        assert parse(spec).spec == spec
    # nothing that has a name is left out of the list
    assert all(any(name in spec for spec in specs) for name in STAGES)


@settings(max_examples=60, deadline=None)
@given(
    p=st.floats(0, 1, exclude_max=True),
    threshold=st.floats(-1e6, 1e6),
    temperature=st.floats(1e-3, 1e6),
    seed=st.integers(0, 2**31 - 1),
)
def test_numbers_survive_to_the_last_bit(p: float, threshold: float, temperature: float, seed: int) -> None:
    score = partial(functional.energy, temperature=temperature)
    detector = LogitDetector(shape=Clip(threshold=threshold), sparsify=RandomContribution(p=p, seed=seed), score=score)
    again = parse(detector.spec)
    assert again.spec == detector.spec
    assert isinstance(again.sparsify, RandomContribution)
    assert (again.sparsify.p, again.sparsify.seed) == (p, seed)
    assert again.shapes[0].threshold == threshold
    assert again.scoring.settings.get("temperature", 1.0) == temperature


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_numpy_numbers_are_numbers(kind: Any, features: Features, tmp_path: Path) -> None:
    """A sweep over ``numpy.linspace`` gives NumPy scalars; what is made with them can be saved and loaded."""
    detector = DICE(p=kind(0.5), shape=Clip(threshold=kind(1.5))).fit(features)
    assert parse(detector.spec).spec == detector.spec
    detector.save(tmp_path / "saved")
    assert torch.equal(oodles.load_detector(tmp_path / "saved").score(features), detector.score(features))


@pytest.mark.parametrize("threshold", [float("inf"), -float("inf")])
def test_an_infinite_threshold_is_refused_or_read_back(threshold: float) -> None:
    try:
        detector = ReAct(threshold=threshold)
    except ArgumentError:
        return
    assert parse(detector.spec).spec == detector.spec


def test_scores_without_a_name_cannot_be_written() -> None:
    detector = DICE(p=0.5, score=lambda logits: logits.mean(dim=-1))
    with pytest.raises(ArgumentError, match="the named ones are energy, msp, max_logit, entropy"):
        _ = detector.spec


# Mistakes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1, 1.0, 90, 1.5, -0.1, float("nan"), float("inf")])
@pytest.mark.parametrize("kind", [DICE, TopContribution, BottomContribution, UnitDropout, UnitPruning])
def test_p_outside_its_range(kind: Any, p: float) -> None:
    with pytest.raises(ArgumentError) as caught:
        kind(p=p)
    assert "p is a fraction: 0.9, not 90" in str(caught.value)
    assert str(p) in str(caught.value)


def test_p_outside_its_range_in_a_text() -> None:
    with pytest.raises(ArgumentError, match=r"p=90 .* p is a fraction: 0\.9, not 90"):
        parse("react(90)+dice(90)")


@pytest.mark.parametrize("percentile", [0.9, 0.999, -1, 100.5, 900, float("nan")])
def test_percentiles_outside_their_range(percentile: float) -> None:
    for make in (Clip, ReAct):
        with pytest.raises(ArgumentError, match=r"in percent, 90 and not 0\.9"):
            make(percentile=percentile)


def test_a_clip_is_a_percentile_or_a_threshold() -> None:
    with pytest.raises(ArgumentError, match="percentile=90 or threshold=1"):
        ReAct(percentile=90, threshold=1)
    with pytest.raises(ArgumentError, match="not both"):
        parse("react(90, 1.0)")
    with pytest.raises(ArgumentError, match="NaN"):
        Clip(threshold=float("nan"))


@pytest.mark.parametrize("temperature", [0, -1, float("nan")])
@pytest.mark.parametrize("kind", [MSP, Energy, Entropy])
def test_temperatures_are_positive(kind: Any, temperature: float) -> None:
    with pytest.raises(ArgumentError, match=r"temperature=.* must be positive"):
        kind(temperature=temperature)


@pytest.mark.parametrize("seed", [-1, 1.5, 2**64])
def test_seeds_that_no_generator_takes_are_refused_at_once(seed: Any) -> None:
    """Arguments are checked where they are given, not when the mask is drawn."""
    with pytest.raises(ArgumentError, match="seed"):
        RandomContribution(p=0.5, seed=seed)


@pytest.mark.parametrize("shape", [TopContribution(), functional.clip, 90])
def test_a_shape_that_is_none_is_named(shape: Any) -> None:
    with pytest.raises(ArgumentError, match="no Shape"):
        LogitDetector(shape=shape)


def test_stages_in_the_wrong_place() -> None:
    with pytest.raises(ArgumentError, match="no Shape"):
        DICE(shape=["react"])  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match="no Sparsifier"):
        LogitDetector(sparsify=0.9)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="'weight'"):
        UnitPruning(by="norm")
    with pytest.raises(ArgumentError, match="by name"):
        LogitDetector(score=partial(functional.energy, torch.zeros(1, 2)))


def test_unknown_names_come_with_the_known_ones() -> None:
    with pytest.raises(ArgumentError, match=r"'dize' in 'dize.*did you mean dice\?"):
        parse("dize(0.9)+energy")
    with pytest.raises(ArgumentError, match="'xyzzy' in 'xyzzy'") as caught:
        parse("xyzzy")
    assert all(name in str(caught.value) for name in (*STAGES, *WHOLES))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("dice(0.9)+weight_pruning(0.5)", "more than one sparsifier"),
        ("dice(0.9)+dice(0.9)", "more than one sparsifier"),
        ("energy+msp", "more than one score"),
        ("dice(q=0.9)", "has no 'q'"),
        ("dice(0.9, 0.8)", "not 2 values"),
        ("max_logit(1)", "takes nothing"),
        ("dice('0.9')", "a number was expected"),
        ("dice(True)", "a number was expected"),
        ("dice([0.9])", "a number was expected"),
        ("energy(1j)", "a number was expected"),
        ("unit_pruning(0.5, by=3)", "a number was expected|must be 'weight'"),
        ("unit_pruning(0.5, by='norm')", "must be 'weight'"),
        ("energy(0)", "must be positive"),
        ("energy(logits=3)", "has no 'logits'"),
    ],
)
def test_mistakes_are_named(text: str, complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        parse(text)


# Hostility --------------------------------------------------------------------------------------

HOSTILE = [
    "",
    " ",
    "+",
    "energy+",
    "energy-msp",
    "energy*2",
    "energy;msp",
    "energy\nmsp",
    "energy\0",
    "\ud800",
    "0.9",
    "'energy'",
    "[energy]",
    "energy()()",
    "dice(0.9).fit",
    "energy.__class__",
    "energy.__globals__['torch']",
    "().__class__.__bases__[0].__subclasses__()",
    "lambda: energy",
    "(lambda: energy)()",
    "energy if True else msp",
    "dice(p := 0.9)",
    "dice(*[0.9])",
    "dice(**{'p': 0.9})",
    "dice(0.9 + 0.05)",
    "dice(nan)",
    "dice(float('nan'))",
    "dice(1e999)",
    "dice(f'{0.9}')",
    "[dice(p) for p in (0.1, 0.9)]",
    "energy(temperature=__import__('os').getpid())",
    "dice({[1]: 2})",
    "dice({[]})",
    "dice(None)",
    "energy(None)",
    "random_k(0.9, None)",
    "react(threshold=1" + "0" * 400 + ")",
    "dice(" + "9" * 5000 + ")",
    "(" * 10_000 + "energy" + ")" * 10_000,
    "-" * 50_000 + "1",
    "dice(" + "-" * 3_000 + "1)",
    "dice(" + "[" * 150 + "]" * 150 + ")",
    "energy" + "()" * 5_000,
    "energy" + ".a" * 20_000,
    "+".join(["energy"] * 50_000),
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_texts_are_refused(text: str) -> None:
    with pytest.raises(ArgumentError):
        parse(text)


@pytest.mark.parametrize(
    "template",
    [
        "open({path!r}, 'w')",
        "__import__('os').system('touch {path}')",
        "__import__('pathlib').Path({path!r}).touch()",
        "dice(__import__('os').system('touch {path}'))",
        "dice(p=open({path!r}, 'w'))",
        "energy(open({path!r}, 'w'))+msp",
        "dice(0.9)+exec(\"open({path!r}, 'w')\")",
        "eval('open({path!r}, \"w\")')",
        "energy+[open({path!r}, 'w') for _ in 'a'][0]",
        "unit_pruning(0.9, by=open({path!r}, 'w').name)",
        "react(threshold=(lambda: open({path!r}, 'w'))())",
    ],
)
def test_texts_run_nothing(template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(os, "system", calls.append)
    trace = tmp_path / "trace"
    with pytest.raises(ArgumentError):
        parse(template.format(path=str(trace)))
    assert not trace.exists()
    assert not calls


@settings(max_examples=150, deadline=None)
@given(
    st.text(max_size=40)
    | st.lists(
        st.sampled_from([*STAGES, "(", ")", "+", "0.5", "90", ",", "=", "p", "by", "seed", "'", "None", "-", "[", "{"]),
        max_size=12,
    ).map("".join)
)
def test_any_text_is_a_detector_or_an_argument_error(text: str) -> None:
    try:
        detector = parse(text)
    except ArgumentError:
        return
    assert parse(detector.spec).spec == detector.spec
