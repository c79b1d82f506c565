"""Detectors as text: what is written is read back, mistakes are named, and no text runs code."""

import os
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oodles import functional
from oodles.detectors import (
    DICE,
    MSP,
    Energy,
    Entropy,
    LogitDetector,
    MaxLogit,
    RandomK,
    ReAct,
    UnitPruning,
    WeightDropout,
    detector_list,
    parse,
)
from oodles.detectors.arguments import describe
from oodles.detectors.registry import BUILT_IN
from oodles.errors import ArgumentError

NAMES = [entry.name for entry in BUILT_IN]

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
        ("odin(1000, 0.004)", "odin(epsilon=0.004)"),
        ("odin(10, None)", "odin(temperature=10.0)"),
        ("odin(epsilon=0, std=[1, 2, 3])", "odin(epsilon=0.0, std=(1.0, 2.0, 3.0))"),
        ("godin(0.02)", "godin(epsilon=0.02)"),
        ("godin(layer='head.cosine')", "godin(layer='head.cosine')"),
        ("mahalanobis(['a', 'b'], None)", "mahalanobis(layers=('a', 'b'), epsilon=None)"),
        ("knn(5)", "knn(k=5)"),
        ("knn(10)", "knn"),
        ("gram(('stage1', 'bn1:relu'), orders=3)", "gram(layers=('stage1', 'bn1:relu'), orders=3)"),
        ("adascale(epsilon=0.25, share=1, shift=0)", "adascale(epsilon=0.25, share=1.0, shift=0)"),
        ("weiper(50, 2.4)", "weiper(repeats=50, delta=2.4)"),
    ],
)
def test_texts_have_one_spec(text: str, spec: str) -> None:
    assert parse(text).spec == spec
    assert parse(spec).spec == spec
    assert "+" in spec or describe(parse(spec)) == describe(parse(text))


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
        (DICE(p=0.7, shape=ReAct(percentile=90)), "react(90)+dice(0.7)+energy"),
        (DICE(p=0.7, score=partial(functional.msp, temperature=2)), "dice(0.7)+msp(2)"),
        (
            DICE(p=0.7, shape=[ReAct(percentile=97), ReAct(threshold=2)]),
            "react(97)+react(threshold=2)+dice(0.7)+energy",
        ),
        (LogitDetector(sparsify=WeightDropout(p=0.3, seed=4)), "weight_dropout(0.3, seed=4)+energy"),
        (LogitDetector(sparsify=UnitPruning(by="activation")), "unit_pruning(0.9, by='activation')+energy"),
    ],
)
def test_detectors_made_in_python_write_the_same_text(detector: LogitDetector, spec: str) -> None:
    assert detector.spec == spec
    assert parse(spec).spec == spec


def test_every_detector_of_the_list_is_read_back() -> None:
    specs = [detector.spec for detector in detector_list()]
    assert len(set(specs)) == len(specs)
    for detector in detector_list():
        again = parse(detector.spec)
        assert again.spec == detector.spec
        if not isinstance(detector, LogitDetector):
            assert describe(again) == describe(detector)
    # nothing that has a name is left out of the list, except what needs a network, members or a particular model
    kinds = {type(detector) for detector in detector_list()}
    left_out = {entry.name for entry in BUILT_IN if entry.kind not in kinds}
    network = {"odin", "iodin", "godin", "adascale", "rankfeat", "gram"}
    assert left_out == {*network, "joint_energy", "mcm", "rank_ensemble", "support", "supported"}


@settings(max_examples=60, deadline=None)
@given(
    p=st.floats(0, 1, exclude_max=True),
    threshold=st.floats(-1e6, 1e6),
    temperature=st.floats(1e-3, 1e6),
    seed=st.integers(0, 2**31 - 1),
)
def test_numbers_survive_to_the_last_bit(p: float, threshold: float, temperature: float, seed: int) -> None:
    score = partial(functional.energy, temperature=temperature)
    detector = LogitDetector(shape=ReAct(threshold=threshold), sparsify=RandomK(p=p, seed=seed), score=score)
    again = parse(detector.spec)
    assert again.spec == detector.spec
    assert (again.sparsify.p, again.sparsify.seed) == (p, seed)
    assert again.shapes[0].threshold == threshold
    assert again.scoring.settings.get("temperature", 1.0) == temperature


def test_a_score_of_one_s_own_has_no_text_to_read_back() -> None:
    detector = DICE(p=0.5, score=lambda logits: logits.mean(dim=-1))
    with pytest.raises(ArgumentError, match="is not a detector"):
        parse(detector.spec)


# Mistakes ---------------------------------------------------------------------------------------

HUGE = f"0x{'f' * 3_800}"  # Python reads it, and does not write it in decimal


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(ArgumentError, match=r"'dize' in 'dize.*did you mean dice\?"):
        parse("dize(0.9)+energy")
    with pytest.raises(ArgumentError, match="'xyzzy' in 'xyzzy'") as caught:
        parse("xyzzy")
    assert all(name in str(caught.value) for name in NAMES)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("dice(0.9)+weight_pruning(0.5)", "more than one sparsifier"),
        ("energy+msp", "more than one score"),
        ("dice(q=0.9)", "has no 'q'"),
        ("dice(0.9, 0.8)", "not 2 values"),
        ("dice(0.9, p=0.8)", "is given p twice"),
        ("dice(0.9, score='msp')", "has no 'score'"),
        ("dice(0.9, shape=())", "has no 'shape'"),
        ("max_logit(1)", "takes no values"),
        ("dice('0.9')", "expected a number"),
        ("dice(True)", "expected a number"),
        ("energy(1j)", "expected a number"),
        ("unit_pruning(0.5, by=3)", "expected a name in quotes"),
        ("energy(logits=3)", "has no 'logits'"),
        ("rank_ensemble", "needs detectors"),
        ("knn+energy", "knn in 'knn.energy' is not a stage of a chain; use it alone"),
        ("odin(std=0.5)", "expected a list, each item a number"),
        ("odin(std='abc')", "expected a list"),
        ("odin(std=[None])", "expected a list, each item a number"),
        ("godin(layer=None)", "expected a name in quotes"),
        ("mahalanobis(layers='ab')", "expected a list|must be a list of names"),
        ("mahalanobis(layers=(1, 2))", "expected a list, each item a name in quotes"),
        # numbers that nothing can be computed with
        (f"knn({HUGE})", "thousands of digits.*expected a number below 1e\\+38"),
        (f"mahalanobis(({HUGE},))", "thousands of digits.*each item a name in quotes"),
        ("knn(5, 0xffffffffffffffff)", "bank=18446744073709551615 must be a whole number"),
        ("knn(1, 2.5)", "bank=2.5 must be a whole number"),
        ("gen(0.1, 2.5)", "top=2.5 must be a whole number from 1"),
        ("gen(0.1, -3)", "top=-3 must be a whole number from 1"),
        ("react(90)+gen(0.1, -3)", "top=-3 must be a whole number from 1"),
        ("gen(-1)", "gamma=-1 must be positive"),
        ("energy(1e23)", "temperature=1e\\+23 must be positive"),
        (f"energy({10**23})", "temperature=1000.* must be positive"),
        ("energy(1e-40)", "temperature=1e-40 must be positive"),
        (f"gradnorm({10**23})", "temperature=1000.* must be positive"),
        ("weiper(100000000)", "repeats=100000000 must be a whole number from 1 to 100,000"),
        ("weiper(bins=1000000000)", "bins=1000000000 must be a whole number from 2 to 10,000"),
        ("optfs(1000000000)", "bins=1000000000 must be a whole number from 2 to 100,000"),
    ],
)
def test_mistakes_are_named(text: str, complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        parse(text)


# Hostile texts ----------------------------------------------------------------------------------

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


def test_a_class_without_a_score_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"oodles\.detectors:Detector does not say how to score"):
        parse("oodles.detectors:Detector")


LIMITS = {
    "energy" + " " * 5_000: "5,006 characters, more than the 4,000",
    "+".join(["react"] * 33): "is a chain of 33 stages; at most 32",
    f"rank_ensemble({['msp'] * 101})": r"rank_ensemble\(detectors=...\) is given 101 items; at most 100",
    f"gram(['a'], {[*range(101)]})": r"gram\(orders=...\) is given 101 items; at most 100",
}


@pytest.mark.parametrize(("text", "complaint"), LIMITS.items(), ids=range(len(LIMITS)))
def test_texts_have_limits(text: str, complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint) as caught:
        parse(text)
    assert len(str(caught.value)) < 300
    assert len(parse("+".join(["react"] * 32)).spec) > 32


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
        st.sampled_from([*NAMES, "(", ")", "+", "0.5", "90", ",", "=", "p", "by", "seed", "'", "None", "-", "[", "{"]),
        max_size=12,
    ).map("".join)
)
def test_any_text_is_a_detector_or_an_argument_error(text: str) -> None:
    try:
        detector = parse(text)
    except ArgumentError:
        return
    assert parse(detector.spec).spec == detector.spec
