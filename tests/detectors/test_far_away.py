"""What is far from all ID data is rejected, and ID inputs are kept after harmless changes of a network."""

import copy
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import detectors as slow
from scipy.stats import spearmanr
from support.detector_data import Pair, assert_matches, train_and_test
from torch import Tensor, nn
from torch.nn import functional as F

from oodles.calibration import calibrate
from oodles.detectors import Detector, Support, default_detector, parse
from oodles.errors import ArgumentError
from oodles.features import Features, Head
from oodles.testing import example_features

COLUMNS = 20


@pytest.mark.parametrize("column", ["embedding", "logits"])
@pytest.mark.parametrize("of", ["mean", "max"])
@settings(max_examples=8, deadline=None)
@given(pair=train_and_test())
def test_support_matches_the_reference(of: str, column: str, pair: Pair) -> None:
    assert_matches(f"support({of!r}, {column!r})", lambda rows: slow.support(rows, of, column), pair)


def test_a_check_must_be_of_something_that_is_there() -> None:
    for wrong in ({"of": "median"}, {"column": "labels"}):
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            Support(**wrong)


# Along every ray ------------------------------------------------------------------------------------


def _features(kind: str) -> Features:
    made = example_features(400, 24, 5)
    embedding = made.embedding.clone()
    embedding[:, 3] = 0.7  # a unit that never changes
    head = made.head
    return {
        "positive": Features(embedding, head=head),
        "signed": Features(embedding - embedding.mean(dim=0), head=head),
        "a table": Features(torch.randn(400, 24, generator=torch.Generator().manual_seed(0)), head=head),
        "logits alone": Features(logits=made.logits),
        "no head": Features(embedding, logits=made.logits),
        "several labels": Features(embedding, head=head, multilabel=True),
        "several labels, logits alone": Features(logits=made.logits, multilabel=True),
    }[kind]


KINDS = ("positive", "signed", "a table", "logits alone", "no head", "several labels", "several labels, logits alone")


@cache
def _fitted(kind: str, spec: str = "") -> tuple[Detector, Features, float]:
    """A detector, what it was fitted on, and its lowest score there."""
    features = _features(kind)
    detector = (parse(spec) if spec else default_detector(features)).fit(features)
    return detector, features, float(detector.score(features).min())


def _along(features: Features, row: int, direction: Tensor, steps: Tensor) -> Features:
    """Points on a ray from one of the rows; logits follow from the head, or stay where there is none."""
    if not features.width:
        return Features(logits=features.logits[row] + steps[:, None] * direction, multilabel=features.multilabel)
    embedding = features.embedding[row] + steps[:, None] * direction
    if features.head is None:
        return Features(embedding, logits=features.logits[[row] * len(steps)])
    return Features(embedding, head=features.head, multilabel=features.multilabel)


@st.composite
def directions(draw: st.DrawFn, width: int, row: Tensor) -> Tensor:
    """Random ones, single units, and the row itself, outwards or inwards through the origin."""
    kind = draw(st.sampled_from(["random", "unit", "scaling"]))
    if kind == "unit":
        sign = draw(st.sampled_from([-1.0, 1.0]))
        return sign * F.one_hot(torch.tensor(draw(st.integers(0, width - 1))), width).float()
    if kind == "scaling":
        return draw(st.sampled_from([-1.0, 1.0])) * F.normalize(row, dim=0)
    seed = draw(st.integers(0, 2**31))
    return F.normalize(torch.randn(width, generator=torch.Generator().manual_seed(seed)), dim=0)


@pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(drawn=st.data())
def test_the_score_of_the_default_falls_below_any_threshold_along_every_ray(kind: str, drawn: st.DataObject) -> None:
    detector, features, lowest = _fitted(kind)
    row = drawn.draw(st.integers(0, len(features) - 1))
    column = features.embedding if features.width else features.logits
    direction = drawn.draw(directions(column.shape[1], column[row]))
    steps = float(column.norm(dim=1).max()) * torch.tensor([10.0, 1e2, 1e3, 1e4, 1e6])
    scores = detector.score(_along(features, row, direction, steps))
    assert scores[0] < lowest
    assert (scores.diff() < 0).all()
    assert scores[-1] < -1e9


@pytest.mark.parametrize("spec", ["energy", "knn(5)", "dice(0.9)", "nnguide", "max_logit"])
def test_any_detector_can_be_given_the_property(spec: str) -> None:
    text = f"supported('{spec}')"
    detector, features, lowest = _fitted("positive", text)
    plain, _, _ = _fitted("positive", spec)
    far = Features(1e3 * features.embedding, head=features.head)
    assert float((plain.score(far) >= plain.score(features).min()).float().mean()) > 0.9, "alone it accepts them"
    assert (detector.score(far) < lowest).all()
    assert spearmanr(detector.score(features), plain.score(features)).statistic > 0.95, "ordinary inputs rank as before"
    assert parse(detector.spec).spec == detector.spec


# Networks -------------------------------------------------------------------------------------------


@cache
def _network(seed: int, signed: bool) -> tuple[nn.Module, Tensor]:
    """A small network trained on a table of standardised columns, and the table."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        rows = torch.randn(4000, COLUMNS)
        labels = (torch.tanh(rows @ torch.randn(COLUMNS, 32)) @ torch.randn(32, 6)).argmax(dim=1)
        last: nn.Module = nn.LayerNorm(64) if signed else nn.ReLU()
        network = nn.Sequential(nn.Linear(COLUMNS, 64), nn.ReLU(), nn.Linear(64, 64), last, nn.Linear(64, 6))
        search = torch.optim.Adam(network.parameters(), lr=1e-2)
        for _ in range(150):
            loss = F.cross_entropy(network(rows[:2000]), labels[:2000])
            search.zero_grad()
            loss.backward()
            search.step()
    return network.eval(), rows


@torch.no_grad()
def _extracted(network: nn.Module, rows: Tensor) -> Features:
    *body, head = network
    embedding = nn.Sequential(*body)(rows.to(head.weight.dtype))
    return Features(embedding.float(), head=Head(head.weight.detach().float(), head.bias.detach().float()))


@cache
def _guarded(seed: int, signed: bool) -> tuple[Detector, float, Tensor]:
    """The default on one of these networks, its threshold, and rows that neither has seen."""
    network, rows = _network(seed, signed)
    detector = default_detector().fit(_extracted(network, rows[:2000]))
    threshold = calibrate(detector.score(_extracted(network, rows[2000:3000])), id_rate=0.95)
    return detector, threshold.value, rows[3000:]


def _accepted(detector: Detector, features: Features, threshold: float) -> float:
    return float((detector.score(features) >= threshold).float().mean())


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_rows_of_a_table_far_from_the_others_are_rejected(seed: int, signed: bool) -> None:
    network, _ = _network(seed, signed)
    detector, threshold, rows = _guarded(seed, signed)
    assert _accepted(detector, _extracted(network, rows), threshold) > 0.9
    if not signed:  # a LayerNorm makes them as long as the others: only the embedding can be told
        for far in (4 * rows, 10 * rows, 100 * rows, rows + 10):
            assert _accepted(detector, _extracted(network, far), threshold) <= 0.01
    features = _extracted(network, rows)
    spread = features.embedding.std(dim=0)
    for far in (4 * features.embedding, 20 * features.embedding, features.embedding + 10 * spread):
        assert _accepted(detector, Features(far, head=features.head), threshold) <= 0.01


def _int8(network: nn.Module) -> nn.Module:
    """A copy whose weights are rounded to 255 steps per output."""
    rounded = copy.deepcopy(network)
    for weight in (part.weight for part in rounded if isinstance(part, nn.Linear)):
        step = weight.data.abs().amax(dim=1, keepdim=True) / 127
        weight.data = (weight.data / step).round() * step
    return rounded


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("change", ["bfloat16", "int8 weights", "noise"])
def test_id_inputs_are_kept_after_harmless_changes(change: str, signed: bool) -> None:
    network, _ = _network(0, signed)
    detector, threshold, rows = _guarded(0, signed)
    if change == "noise":
        features = _extracted(network, rows)
        noise = torch.randn(features.embedding.shape, generator=torch.Generator().manual_seed(0))
        changed = Features(features.embedding + 0.01 * features.embedding.std() * noise, head=features.head)
    else:
        other = copy.deepcopy(network).bfloat16() if change == "bfloat16" else _int8(network)
        embedding = _extracted(other, rows).embedding
        changed = Features(embedding, head=_extracted(network, rows[:1]).head)
    assert _accepted(detector, changed, threshold) >= 0.9


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["densenet_cifar10", "densenet_cifar100", "lite0_imagenet", "small_cifar10"])
def test_embeddings_of_real_networks(name: str, data: Path) -> None:
    arrays = np.load(data / "networks" / f"{name}.npz")
    head = Head(torch.from_numpy(arrays["W"]).float(), torch.from_numpy(arrays["b"]).float())
    train, test = (torch.from_numpy(arrays[part]).float() for part in ("train", "id_test"))
    detector = default_detector().fit(Features(train, head=head))
    threshold = calibrate(detector.score(Features(test[::2], head=head)), id_rate=0.95).value
    own = test[1::2]
    noise = torch.randn(own.shape, generator=torch.Generator().manual_seed(0))
    for kept in (own, own.bfloat16().float(), own + 0.01 * train.std(dim=0) * noise):
        assert _accepted(detector, Features(kept, head=head), threshold) >= 0.9
    for far in (4 * own, 20 * own, 100 * own, own + 10 * train.std(dim=0)):
        assert _accepted(detector, Features(far, head=head), threshold) <= 0.01


@pytest.mark.realdata
def test_noise_behind_a_layer_norm_on_a_frozen_network(data: Path) -> None:
    """A small projection of real embeddings varies by 1e-6 of the largest variance in some directions."""
    arrays = np.load(data / "networks" / "densenet_cifar10.npz")
    embedding, labels = torch.from_numpy(arrays["train"]).float(), torch.from_numpy(arrays["train_labels"]).long()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = [nn.Linear(embedding.shape[1], 128), nn.GELU(), nn.Linear(128, 128), nn.LayerNorm(128)]
        network = nn.Sequential(*body, nn.Linear(128, 10))
        search = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.05)
        for _ in range(600):
            rows = torch.randint(len(embedding), (256,))
            loss = F.cross_entropy(network(embedding[rows]), labels[rows])
            search.zero_grad()
            loss.backward()
            search.step()
    detector = default_detector().fit(_extracted(network, embedding))
    test = torch.from_numpy(arrays["id_test"]).float()
    threshold = calibrate(detector.score(_extracted(network, test[::2])), id_rate=0.95).value
    features = _extracted(network, test[1::2])
    noise = torch.randn(features.embedding.shape, generator=torch.Generator().manual_seed(0))
    changed = Features(features.embedding + 0.01 * features.embedding.std() * noise, head=features.head)
    assert _accepted(detector, changed, threshold) >= 0.9
