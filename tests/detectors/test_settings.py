"""Settings that make no sense are refused by the constructor, in one line that names them."""

import math

import pytest

from oodles.detectors import (
    ASHB,
    ASHP,
    ASHS,
    DDU,
    DICE,
    GODIN,
    LTS,
    MCM,
    MSP,
    ODIN,
    SCALE,
    VRA,
    AdaSCALE,
    BottomK,
    Detector,
    Energy,
    Entropy,
    Gram,
    Mahalanobis,
    RandomK,
    RankEnsemble,
    RankFeat,
    ReAct,
    UnitDropout,
    UnitPruning,
    WeightDropout,
    WeiPer,
    parse,
)
from oodles.errors import ArgumentError

NAN, INF = math.nan, math.inf

TEXTS = {
    "adascale(0, 85)": "low=0",
    "adascale(0.75, 0.85)": "low=0.75",
    "adascale(90, 80)": "low=90",
    "adascale(high=100)": "high=100",
    "adascale(scaled='a')": "scaled='a'",
    "adascale(epsilon=0)": "epsilon=0",
    "adascale(epsilon=-1)": "epsilon=-1",
    "adascale(share=0)": "share=0",
    "adascale(share=1.5)": "share=1.5",
    "weiper(repeats=0)": "repeats=0",
    "weiper(repeats=2.5)": "repeats=2.5",
    "weiper(bins=1)": "bins=1",
    "weiper(smooth=0)": "smooth=0",
    "weiper(smooth=101)": "smooth=101",
    "weiper(smooth_logits=0)": "smooth_logits=0",
    "weiper(bins=10)": "smooth_logits=15",
    "weiper(seed=1.5)": "seed=1.5",
    "vra(90, 10)": "low=90",
    "vra(50, 50)": "low=50",
    "vra(0.6, 0.95)": "high=0.95",
    "vra(-1, 50)": "low=-1",
    "vra(50, 101)": "high=101",
    "react(90)+dice(90)": "p=90",
    "knn(20, bank=10)": "bank=10",
    "nnguide(0)": "k=0",
    "residual(0)": "dimension=0",
    "neco(-1)": "dimension=-1",
    "vim(1.5)": "dimension=1.5",
    "openmax(tail=1)": "tail=1",
    "openmax(2, 2.5)": "top=2.5",
    "gradnorm(0)": "temperature=0",
    "rank_ensemble(('msp', 'knn'), 'product')": "reduction='product'",
    "rank_ensemble(('msp',))": "at least two",
    "rank_ensemble(('msp', 'nonsense'))": "'nonsense'",
}
ARGUMENTS: list[tuple[type[Detector], str, list[object]]] = [
    *((kind, "percentile", [0.9, -1, 100.5, NAN]) for kind in (ReAct, ASHP, ASHB, ASHS, SCALE, LTS)),
    (ReAct, "threshold", [NAN, INF, -INF]),
    *((kind, "per", ["row"]) for kind in (ReAct, VRA)),
    *((kind, "p", [1, 90, -0.1, NAN, INF]) for kind in (DICE, BottomK, RandomK, UnitDropout, UnitPruning)),
    *((kind, "seed", [-1, 1.5, 2**64]) for kind in (RandomK, WeightDropout, UnitDropout)),
    *((kind, "temperature", [0, -1, NAN]) for kind in (MSP, Energy, Entropy, ODIN, MCM)),
    *((kind, "epsilon", [-0.1, NAN, INF]) for kind in (ODIN, GODIN, Mahalanobis)),
    *((kind, "std", [(0.0, 1.0, 1.0), (-1.0,), (NAN,), 0.5]) for kind in (ODIN, GODIN, Mahalanobis)),
    (DDU, "ridge", [0, -1, NAN]),
    (Gram, "layers", ["layer4", (), ("a", ""), ("a", 3), ("a", "a")]),
    (Gram, "orders", [0, 11, 2.5, True]),
    (RankFeat, "layer", ["", 4, None, ("layer4",)]),
    *((AdaSCALE, name, [NAN, INF]) for name in ("low", "high", "epsilon", "share", "shift")),
    *((WeiPer, name, [NAN, INF]) for name in ("delta", "weight", "confidence")),
]


@pytest.mark.parametrize(("text", "named"), TEXTS.items())
def test_in_text(text: str, named: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        parse(text)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        *((kind, name, value) for kind, name, values in ARGUMENTS for value in values),
        *((RankEnsemble, "holdout", value) for value in (-0.1, 1, 1e-4, NAN)),
    ],
    ids=str,
)
def test_in_python(kind: type[Detector], name: str, value: object) -> None:
    others = {"detectors": ["energy", "msp"]} if kind is RankEnsemble else {}
    with pytest.raises(ArgumentError) as caught:
        kind(**others, **{name: value})
    assert f"{name}={value!r}" in str(caught.value)
    assert "\n" not in str(caught.value)
