import itertools
import math
import struct
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Net, NoBias, pictures, seeded, spread

import oodles as ood
from oodles.detectors import Combination, Detector, Jury, combine, default_detector, load_detector, parse
from oodles.detectors.combination import FEWEST, TAIL, WAYS, knots, rank
from oodles.detectors.statistics import RowSample, row_keys
from oodles.errors import ArgumentError, DataError, FileError, NotFittedError, OodlesError, ShapeError
from oodles.features import Features, Head
from oodles.testing import example_features

MEMBERS = ("trio", "ash_b(90)", "fdbd", "mahalanobispp", "knn(5, 2000)")
SHARE = 200
"""Of a thousand rows so many are kept apart."""
PAIR = ("msp", "knn(3)")


def extracted(rows: int = 240, width: int = 12, classes: int = 4, seed: int = 0) -> Features:
    """Features as ``extract`` gives them: the network's own logits are kept."""
    made = example_features(rows, width, classes, seed)
    return Features(made.embedding, logits=made.logits, labels=made.labels, head=made.head)


def with_labels(features: Features, labels: torch.Tensor | None) -> Features:
    return Features(features.embedding, logits=features.logits, labels=labels, head=features.head)


def predicted(features: Features) -> Features:
    return with_labels(features, features.logits.argmax(dim=1))


def in_parts(detector: Detector, parts: list[Features]) -> Detector:
    for part in parts:
        detector.partial_fit(part)
    return detector.finish()


# Slow twins ----------------------------------------------------------------------------------------


def signed(value: int) -> int:
    value %= 1 << 64
    return value - (1 << 64) if value >= 1 << 63 else value


def slow_key(row: list[float], factors: list[int]) -> int:
    key = 0
    for value, factor in zip(row, factors, strict=True):
        (bits,) = struct.unpack("<i", struct.pack("<f", value))
        key = signed(key + bits * factor)
    key = signed((key ^ (key >> 31)) * -7046029254386353131)
    return key ^ (key >> 29)


def slow_keys(rows: torch.Tensor) -> list[int]:
    width = rows.shape[1]
    generator = torch.Generator().manual_seed(width)
    factors = [2 * value + 1 for value in torch.randint(1 << 61, (width,), generator=generator).tolist()]
    return [slow_key(row, factors) for row in rows.tolist()]


def slow_row_keys(detector: Combination, features: Features) -> list[int]:
    """The keys that decide which rows are kept apart: of all that members score from."""
    return slow_keys(features.column("embedding" if features.holds("embedding") else "logits").float())


def slow_apart(detector: Combination, features: Features) -> torch.Tensor:
    return torch.tensor([key % 1000 < SHARE for key in slow_row_keys(detector, features)])


def split(detector: Combination, features: Features) -> tuple[Features, Features]:
    """What members learn from, and what is kept apart."""
    apart = slow_apart(detector, features)
    assert FEWEST <= int(apart.sum()) < len(features) // 3
    return features[(~apart).nonzero()[:, 0]], features[apart.nonzero()[:, 0]]


def sound(scores: Callable[[], torch.Tensor]) -> bool:
    """Whether there are scores, all of them finite; else an error of the house in one line."""
    try:
        return bool(torch.isfinite(scores()).all())
    except OodlesError as error:
        return "\n" not in str(error)


def slow_knots(scores: list[float]) -> list[float]:
    ordered = sorted(scores)
    count = min(101, max(2, len(ordered) // 4))
    found = []
    for place in range(count):
        at = place / (count - 1) * (len(ordered) - 1)
        low = min(int(at), len(ordered) - 2)
        found.append(ordered[low] + (at - low) * (ordered[low + 1] - ordered[low]))
    return found


def slow_rank(score: float, reference: list[float]) -> float:
    if math.isnan(score):
        return math.nan
    first, last = reference[0], reference[-1]
    inside = min(max(score, first), last)
    equal = [place for place, value in enumerate(reference) if value == inside]
    above = sum(value < inside for value in reference)
    if equal:
        placed = sum(equal) / len(equal)
    else:
        placed = above - 1 + (inside - reference[above - 1]) / (reference[above] - reference[above - 1])
    placed /= len(reference) - 1
    if math.isinf(score):
        return placed + math.copysign(0.5, score)
    beyond = (score - inside) / max(last - first, 1e-6 * max(map(abs, reference)), 1e-30)
    return placed + 0.5 * beyond / (1 + abs(beyond))


def slow_join(ranks: list[float], how: str) -> float:
    if how == "min":
        return min(ranks)
    if how == "mean":
        return sum(ranks) / len(ranks)
    logs = []
    for each in ranks:
        if each >= TAIL:
            logs.append(math.log(each))
        else:
            logs.append(math.log(TAIL) - math.log(1 + (TAIL - each) / TAIL))
    return sum(logs) / len(logs)


def slow_scores(members: list[Detector], held_out: Features, test: Features, how: str) -> list[float]:
    references = [slow_knots(member.score(held_out).double().tolist()) for member in members]
    columns = [member.score(test).double().tolist() for member in members]
    rows = zip(*columns, strict=True)
    return [
        slow_join([slow_rank(score, reference) for score, reference in zip(row, references, strict=True)], how)
        for row in rows
    ]


@given(st.integers(1, 150), st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_keys_are_the_slow_ones(width: int, seed: int) -> None:
    rows = torch.randn(5, width, generator=torch.Generator().manual_seed(seed))
    rows[0, 0], rows[1, -1] = 0.0, -0.0
    assert row_keys(rows).tolist() == slow_keys(rows)
    assert torch.equal(row_keys(rows.T.contiguous().T), row_keys(rows)), "however they lie in memory"


def test_about_the_asked_share_of_rows_is_kept_apart() -> None:
    rows = torch.randn(20_000, 7, generator=torch.Generator().manual_seed(0))
    share = float((row_keys(rows) % 1000 < SHARE).double().mean())
    assert abs(share - 0.2) < 4 * math.sqrt(0.2 * 0.8 / len(rows))
    # a row that is nearly another is a row of its own
    near = row_keys(rows[:2000] * (1 + 1e-6)) % 1000 < SHARE
    both = float((near & (row_keys(rows[:2000]) % 1000 < SHARE)).double().mean())
    assert abs(both - 0.04) < 0.02


@pytest.mark.parametrize("limit", [1, 10, 40, 100])
def test_samples_are_the_rows_with_the_smallest_keys(limit: int) -> None:
    rows = torch.randn(60, 5, generator=torch.Generator().manual_seed(1))
    keys = slow_keys(rows)
    order = sorted(range(len(rows)), key=lambda place: keys[place])[:limit]
    sample = RowSample(limit)
    for part in rows.split(7):
        sample.add(part)
    assert torch.equal(sample.rows(), rows[order])


@given(
    st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=30),
    st.lists(st.floats(-200, 200, width=32), min_size=1, max_size=10),
)
@settings(deadline=None)
def test_ranks_are_the_slow_ones_in_the_tails_too(values: list[float], scores: list[float]) -> None:
    reference = torch.tensor(values, dtype=torch.float64).sort().values
    got = rank(torch.tensor(scores, dtype=torch.float64), reference)
    np.testing.assert_allclose(got, [slow_rank(score, reference.tolist()) for score in scores], atol=1e-9)


@pytest.mark.parametrize("rows", [2, 7, 8, 11, 40, 403, 404, 1000])
def test_knots_are_the_slow_ones(rows: int) -> None:
    scores = torch.randn(rows, dtype=torch.float64, generator=torch.Generator().manual_seed(rows))
    np.testing.assert_allclose(knots(scores), slow_knots(scores.tolist()), atol=1e-12)


# The Fisher join -------------------------------------------------------------------------------------


class Given(Detector):
    """Scores as they are given: one column of the logits."""

    scores_from = ("logits",)

    def __init__(self, *, place: int = 0) -> None:
        super().__init__()
        self.place = place

    @property
    def spec(self) -> str:
        return f"given({self.place})"

    def forward(self, embedding: torch.Tensor, logits: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return logits[:, self.place]


def joined(how: str, held_out: torch.Tensor) -> Combination:
    combination = Combination(detectors=[Given(place=0), Given(place=1)], how=how, apart=0)
    combination.tune(Features(logits=held_out))
    return combination


@pytest.mark.parametrize("how", WAYS)
def test_joins_are_the_slow_ones(how: str) -> None:
    generator = torch.Generator().manual_seed(4)
    held_out = torch.randn(500, 2, dtype=torch.float64, generator=generator)
    test = torch.randn(200, 2, dtype=torch.float64, generator=generator) * 4
    references = [slow_knots(held_out[:, place].tolist()) for place in (0, 1)]
    want = [slow_join([slow_rank(a, references[0]), slow_rank(b, references[1])], how) for a, b in test.tolist()]
    got = joined(how, held_out).double().score(Features(logits=test))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@given(st.floats(-60, 60), st.floats(-60, 60), st.floats(0, 20))
@settings(deadline=None)
def test_no_member_that_is_surer_of_id_lowers_the_join(first: float, second: float, more: float) -> None:
    held_out = torch.linspace(-3, 3, 200, dtype=torch.float64)[:, None].expand(-1, 2)
    pairs = torch.tensor([[first, second], [first + more, second], [first, second + more]], dtype=torch.float64)
    for how in WAYS:
        here, one, other = joined(how, held_out).double().score(Features(logits=pairs)).tolist()
        assert one >= here - 1e-9
        assert other >= here - 1e-9


def test_one_that_is_sure_counts_for_more_than_two_that_doubt() -> None:
    held_out = torch.linspace(0, 1, 401)[:, None].expand(-1, 2)
    sure, doubtful = joined("fisher", held_out).score(Features(logits=torch.tensor([[0.001, 0.8], [0.4, 0.4]])))
    assert sure < doubtful
    # further out is stranger still, without end in sight of either
    out = joined("fisher", held_out).score(Features(logits=torch.tensor([[-float(i), 0.5] for i in range(30)])))
    assert (out.diff() < 0).all()
    assert torch.isfinite(out).all()


def test_the_join_bends_nowhere() -> None:
    # at TAIL the logarithm hands over to the tail with the same value and the same slope
    step = 1e-7
    below, at, above = (slow_join([TAIL + move], "fisher") for move in (-step, 0, step))
    assert at - below == pytest.approx(above - at, rel=1e-3)
    assert at == pytest.approx(math.log(TAIL))


@pytest.mark.parametrize("how", WAYS)
def test_combine_takes_ranks_on_given_rows(how: str) -> None:
    features = extracted(200)
    train, held_out, test = features[:100], features[100:160], features[160:]
    members = [parse(text).fit(train) for text in PAIR]
    got = combine(list(PAIR), train=train, held_out=held_out, how=how)
    assert got.apart == 0
    np.testing.assert_allclose(got.score(test), slow_scores(members, held_out, test, how), rtol=1e-4, atol=1e-4)


# Rows kept apart ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", WAYS)
def test_members_do_not_learn_from_the_rows_kept_apart(how: str) -> None:
    features = extracted()
    texts = ("dice(0.9)", "knn(3)", "mahalanobis")
    got = Combination(detectors=texts, how=how).fit(features)
    rest, kept = split(got, features)
    members = [parse(text).fit(rest) for text in texts]
    for mine, alone in zip(got.members, members, strict=True):
        assert mine.state_dict().keys() == alone.state_dict().keys()
        for name, value in alone.state_dict().items():
            assert torch.equal(mine.state_dict()[name], value), f"{alone}: {name}"
    np.testing.assert_allclose(got.score(features), slow_scores(members, kept, features, how), rtol=1e-4, atol=1e-4)


def test_rows_kept_apart_move_ranks_and_nothing_else() -> None:
    features = extracted()
    apart = slow_apart(Jury(), features)
    half = apart.clone()
    half[apart.nonzero()[::2, 0]] = False
    fewer = features[(~apart | half).nonzero()[:, 0]]
    whole, less = Jury().fit(features), Jury().fit(fewer)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, less.state_dict()[name]) == (name != "ranks_"), name


def test_rows_are_told_by_what_members_score_from() -> None:
    # of logits alone there are no embeddings to go by, and none are needed
    features = extracted()
    bare = Features(logits=features.logits)
    members = [parse(text) for text in ("energy", "msp")]
    got = Combination(detectors=["energy", "msp"], how="fisher").fit(bare)
    kept = split(got, bare)[1]
    np.testing.assert_allclose(got.score(bare), slow_scores(members, kept, bare, "fisher"), rtol=1e-4, atol=1e-4)


def test_at_most_so_many_rows_are_ranked_against(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oodles.detectors.combination.SAMPLE", 20)
    features = extracted()
    keys = slow_row_keys(Jury(), features)
    places = sorted((place for place, key in enumerate(keys) if key % 1000 < SHARE), key=lambda place: keys[place])
    members = list(Jury().fit(features).members)
    got = in_parts(Jury(), list(features.batches(9))).score(features)
    want = slow_scores(members, features[places[:20]], features, "fisher")
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("apart", [-0.1, 1, 1.5, float("nan")])
def test_shares_that_are_none(apart: float) -> None:
    with pytest.raises(ArgumentError, match="fraction of the training rows"):
        Combination(detectors=PAIR, apart=apart)


def test_a_share_that_keeps_nothing_apart() -> None:
    with pytest.raises(ArgumentError, match="next to no row"):
        Combination(detectors=PAIR, apart=1e-4)


@pytest.mark.parametrize("apart", [0.999, 0.9999])
@pytest.mark.parametrize("pair", [PAIR, ("klmatching", "tempscale"), ("trio", "vim")])
def test_shares_that_leave_too_little(apart: float, pair: tuple[str, str]) -> None:
    features = extracted(60)
    detector = Combination(detectors=pair, apart=apart)
    with pytest.raises(OodlesError) as raised:
        detector.fit(features)
    assert "\n" not in str(raised.value)


# Orders and parts ---------------------------------------------------------------------------------------

WHOLE = extracted()
SCORES = Jury().fit(WHOLE).score(WHOLE)
RANKS = Jury().fit(WHOLE).ranks_


@given(st.randoms(use_true_random=False), st.lists(st.integers(1, 239), max_size=6, unique=True))
@settings(max_examples=15, deadline=None)
def test_orders_and_parts_say_nothing(chance, cuts: list[int]) -> None:
    order = list(range(len(WHOLE)))
    chance.shuffle(order)
    ends = [0, *sorted(cuts), len(WHOLE)]
    parts = [WHOLE[order[low:high]] for low, high in itertools.pairwise(ends)]
    folded = in_parts(Jury(), parts)
    seen = [Jury().partial_fit(part) for part in parts]
    while len(seen) > 1:
        taken = seen.pop(chance.randrange(len(seen)))
        seen[chance.randrange(len(seen))].merge(taken)
    for detector in (folded, seen[0].finish(), Jury().fit(WHOLE[order])):
        torch.testing.assert_close(detector.ranks_, RANKS, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(detector.score(WHOLE), SCORES, rtol=1e-4, atol=1e-5)


def test_batches_of_one_row() -> None:
    # some parts then hold nothing for the members, others nothing to rank against
    def make() -> Combination:
        return Combination(detectors=["tempscale", "vim", "klmatching", "nnguide"], how="fisher")

    want = make().fit(WHOLE).score(WHOLE)
    torch.testing.assert_close(in_parts(make(), list(WHOLE.batches(1))).score(WHOLE), want, rtol=1e-4, atol=1e-5)
    first, *rest = (make().partial_fit(row) for row in WHOLE.batches(1))
    for other in rest:
        first.merge(other)
    torch.testing.assert_close(first.finish().score(WHOLE), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("width", [12, 64, 342])
@pytest.mark.parametrize("rows", [1, 7])
def test_logits_computed_in_parts_keep_the_same_rows_apart(width: int, rows: int) -> None:
    # a product of few rows may round otherwise than one of many, which must not decide who is kept apart
    features = example_features(300, width, 10)
    whole = Jury().fit(features)
    parts = in_parts(Jury(), list(features.batches(rows)))
    torch.testing.assert_close(parts.ranks_, whole.ranks_, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(parts.score(features), whole.score(features), rtol=1e-3, atol=1e-3)


def test_stored_features_are_those_in_memory(tmp_path) -> None:
    WHOLE.save(tmp_path / "store")
    assert torch.equal(Jury().fit(Features.load(tmp_path / "store")).score(WHOLE), SCORES)


# The jury -------------------------------------------------------------------------------------------------


def test_the_jury_is_the_default_and_is_its_members_joined() -> None:
    assert type(default_detector()) is Jury
    assert default_detector().spec == "jury"
    assert tuple(parse(text).spec for text in MEMBERS) == Jury().detectors
    labelled = predicted(WHOLE)
    rest, kept = split(Jury(), labelled)
    members = [parse(text).fit(rest) for text in MEMBERS]
    np.testing.assert_allclose(SCORES, slow_scores(members, kept, labelled, "fisher"), rtol=1e-4, atol=1e-4)
    by_hand = Combination(detectors=MEMBERS, how="fisher").fit(labelled)
    assert torch.equal(by_hand.score(WHOLE), SCORES)


def test_the_jury_looks_at_no_labels() -> None:
    bare, wrong = with_labels(WHOLE, None), with_labels(WHOLE, WHOLE.labels.flip(0))
    assert "labels" not in Jury().learns_from
    for features in (bare, wrong):
        assert torch.equal(Jury().fit(features).score(features), SCORES)


def test_what_the_jury_cannot_do_without() -> None:
    with pytest.raises(ShapeError, match="learns from the head"):
        Jury().fit(Features(WHOLE.embedding, logits=WHOLE.logits))
    with pytest.raises(ShapeError, match="learns from the embedding"):
        Jury().fit(Features(logits=WHOLE.logits))
    with pytest.raises(NotFittedError, match="not been fitted"):
        Jury().score(WHOLE)
    assert not Jury().fitted
    assert not Jury().needs_network


def test_strange_rows_are_told() -> None:
    features = extracted(600, 24, 5)
    detector = Jury().fit(features[:400])
    usual = detector.score(features[400:])
    generator = torch.Generator().manual_seed(0)
    noise = Features((0.8 + torch.randn(200, 24, generator=generator)).relu(), head=features.head)
    strange = detector.score(noise)
    assert float((usual[:, None] > strange[None]).double().mean()) > 0.9


def test_float32_agrees_with_float64() -> None:
    wide = Jury().fit(WHOLE).double().score(WHOLE.to(dtype=torch.float64))
    assert wide.dtype == torch.float64
    torch.testing.assert_close(SCORES.double(), wide, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("make", [Jury, lambda: Combination(detectors=["dice(0.9)", "knn(3)"])])
def test_features_and_heads_of_another_precision(dtype: torch.dtype, make: Callable[[], Detector]) -> None:
    features = WHOLE.to(dtype=dtype)
    assert torch.isfinite(make().fit(features).score(features)).all()


def test_half_precision_features_under_an_ordinary_head() -> None:
    half = Features(WHOLE.embedding.half(), head=WHOLE.head)
    scores = Jury().fit(half).score(half)
    assert scores.dtype == torch.float32
    assert torch.isfinite(scores).all()


def test_a_second_fit_forgets_the_first() -> None:
    detector = Jury().fit(WHOLE[:100])
    assert torch.equal(detector.fit(WHOLE).score(WHOLE), SCORES)


def test_a_fit_that_fails_leaves_nothing_to_score_with() -> None:
    detector = Jury().fit(WHOLE)
    with pytest.raises(DataError):
        detector.fit(WHOLE[:1])
    with pytest.raises(NotFittedError, match=r"\.fit"):
        detector.score(WHOLE)


def test_exports_give_the_same() -> None:
    detector = Jury().fit(WHOLE)
    rows = {0: torch.export.Dim("rows", min=2, max=1 << 20)}
    sample = (WHOLE.embedding[:2], WHOLE.logits[:2])
    program = torch.export.export(detector, sample, dynamic_shapes=(rows, rows)).module()
    for count in (2, 9, 100):
        with torch.no_grad():
            got = program(WHOLE.embedding[:count], WHOLE.logits[:count])
        torch.testing.assert_close(got, SCORES[:count], rtol=1e-4, atol=1e-5)


# Awkward cases ----------------------------------------------------------------------------------------------


def made(change: Callable[[torch.Tensor], torch.Tensor], head: Head | None = None, rows: int = 240) -> Features:
    usual = example_features(rows, 12, 4)
    return Features(change(usual.embedding.clone()), head=head or usual.head)


def head_of(weight: float = 1, bias: tuple[float, ...] | None = None) -> Head:
    usual = example_features(10, 12, 4).head
    assert usual is not None
    return Head(usual.weight * weight, usual.bias if bias is None else torch.tensor(bias))


def silenced(embedding: torch.Tensor) -> torch.Tensor:
    embedding[:, :8] = 0
    return embedding


def rare_classes() -> Features:
    """All of one class but a single row each of two others; the fourth is never predicted."""
    features = example_features(240, 12, 4)
    label = features.logits.argmax(dim=1)
    singles = [(label == each).nonzero()[:1, 0] for each in (1, 2)]
    picked = features[torch.cat([(label == 0).nonzero()[:, 0], *singles])]
    return Features(picked.embedding, head=features.head)


SOUND = {
    "dead units": made(silenced),
    "every row ten times": made(lambda rows: rows[:24].repeat(10, 1)),
    "rare classes": rare_classes(),
    "a class never predicted": made(lambda rows: rows, head_of(bias=(0.0, 0.0, 0.0, -1e4))),
    "one class predicted": made(lambda rows: rows, head_of(bias=(1e4, 0.0, 0.0, 0.0))),
    "equal logits": made(lambda rows: rows, Head(torch.ones(4, 12))),
    "no logits to speak of": made(lambda rows: rows, Head(torch.zeros(4, 12))),
    "logits of 1e4": made(lambda rows: rows, head_of(1e4)),
    "logits of 1e20": made(lambda rows: rows, head_of(1e20)),
    "no bias": made(lambda rows: rows, Head(head_of().weight)),
    "two classes": made(lambda rows: rows, Head(head_of().weight[:2])),
    "negative embeddings": made(lambda rows: -rows - 1),
    "tiny embeddings": made(lambda rows: rows * 1e-30),
    "fewer rows than units": example_features(80, 200, 5),
    "a single class": example_features(200, 12, 1),
}


@pytest.mark.parametrize("name", SOUND)
def test_scores_are_finite(name: str) -> None:
    features = SOUND[name]
    scores = Jury().fit(features).score(features)
    assert scores.shape == (len(features),)
    assert torch.isfinite(scores).all()
    one = torch.cat([Jury().fit(features).score(features[row : row + 1]) for row in range(3)])
    assert torch.isfinite(one).all()


HOPELESS = {
    "3 rows": example_features(3, 12, 4),
    "30 rows": example_features(30, 12, 4),
    "one row": example_features(1, 12, 4),
    "dead embeddings": made(torch.zeros_like),
    "three rows many times": made(lambda rows: rows[:3].repeat(80, 1)),
    "a class for every row": Features(torch.eye(200) + 0.01, head=Head(torch.eye(200))),
    "embeddings too large to square": made(lambda rows: rows * 1e30, head_of(1e-30)),
}


@pytest.mark.parametrize("name", HOPELESS)
def test_one_line_says_what_is_wrong(name: str) -> None:
    features = HOPELESS[name]
    assert sound(lambda: Jury().fit(features).score(features))


@pytest.mark.parametrize("aside", [False, True])
@pytest.mark.parametrize("pair", [MEMBERS, PAIR, ("tempscale", "openmax"), ("klmatching", "she"), ("vim", "weiper")])
def test_rows_that_are_all_the_same(aside: bool, pair: tuple[str, ...]) -> None:
    features = extracted(100)
    detector = Combination(detectors=pair, how="fisher")
    place = int((slow_apart(detector, features) == aside).nonzero()[0, 0])
    same = predicted(features[[place] * 100])
    assert sound(lambda: detector.fit(same).score(features))


def test_far_away_is_still_a_number() -> None:
    detector = Jury().fit(WHOLE)
    for factor in (0.0, 1e-20, 1e6, 1e15):
        far = Features(WHOLE.embedding[:20] * factor, head=WHOLE.head)
        assert torch.isfinite(detector.score(far)).all(), factor


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_no_number(broken: float) -> None:
    detector = Jury().fit(WHOLE)
    embedding, logits = WHOLE.embedding[:4].clone(), WHOLE.logits[:4].clone()
    embedding[1, 0] = broken
    scores = detector(embedding, WHOLE.head(embedding))
    assert not torch.isfinite(scores[1]) or scores[1] < SCORES.min()
    torch.testing.assert_close(scores[[0, 2, 3]], SCORES[[0, 2, 3]])
    if math.isnan(broken):
        assert torch.isnan(scores[1])
        logits[2, 1] = broken
        assert torch.isnan(detector(WHOLE.embedding[:4], logits)).tolist() == [False, False, True, False]


# As text and on disk ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "detector",
    [
        Jury(),
        Combination(detectors=PAIR, how="fisher"),
        Combination(detectors=PAIR, how="min", apart=0.5),
        Combination(detectors=["react(90)+dice(0.7)", "vim"]),
        Combination(detectors=["odin(epsilon=0.004)", "mahalanobis"], how="fisher", apart=0),
    ],
)
def test_read_back_from_text(detector: Combination) -> None:
    again = parse(detector.spec)
    assert again.spec == detector.spec
    assert repr(again) == repr(detector)
    assert (again.learns_from, again.scores_from) == (detector.learns_from, detector.scores_from)


@pytest.mark.parametrize(
    "text",
    [
        "combination",
        "combination()",
        "combination(())",
        "combination('msp')",
        "combination(('msp',))",
        "combination(('msp', 3))",
        "combination(('msp', 'nonsense'))",
        "combination(('msp', 'knn'), 'product')",
        "combination(('msp', 'knn'), apart=True)",
        "combination(('msp', 'knn'), apart='half')",
        "combination(('msp', 'knn'), apart=None)",
        "jury(1)",
        "jury(apart=0.1)",
        "jury+energy",
        "Jury",
    ],
)
def test_text_that_is_no_combination(text: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        parse(text)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["jury", "combination(('dice(0.9)', 'knn(3)'), 'fisher')"])
def test_saved_and_loaded(text: str, tmp_path) -> None:
    detector = parse(text).fit(WHOLE)
    detector.save(tmp_path / "saved")
    loaded = load_detector(tmp_path / "saved")
    assert type(loaded) is type(detector)
    assert loaded.spec == detector.spec
    assert loaded.fitted
    assert torch.equal(loaded.score(WHOLE), detector.score(WHOLE))
    with pytest.raises(NotFittedError):
        parse(text).save(tmp_path / "other")


def test_files_that_lack_something(tmp_path) -> None:
    for name in ("ranks_", "members.0.weight_", "members.3.gaussian.whitening_"):
        detector = Jury().fit(WHOLE)
        *path, buffer = name.split(".")
        setattr(detector.get_submodule(".".join(path)), buffer, None)
        try:
            detector.save(tmp_path / name)
        except NotFittedError:
            continue  # refused before it is written: as good
        with pytest.raises(FileError, match=f"{buffer} missing"):
            load_detector(tmp_path / name)


def test_a_combination_of_combinations() -> None:
    # refused by name or joined; more rows are no remedy
    for first in ("jury", "combination(('msp', 'energy'))"):
        try:
            scores = Combination(detectors=[first, "knn(3)"]).fit(WHOLE).score(WHOLE)
        except ArgumentError:
            continue
        assert torch.isfinite(scores).all()


# With a network ---------------------------------------------------------------------------------------------


IMAGES = pictures(220, seed=5)
LABELS = torch.arange(220) % 5


@pytest.mark.parametrize("network", [Net, NoBias])
def test_a_guard_from_end_to_end(network: type[Net], tmp_path) -> None:
    model = seeded(network).eval()
    labelled = [(IMAGES[:110], LABELS[:110]), (IMAGES[110:160], LABELS[110:160])]
    bare = [images for images, _ in labelled]
    held_out = [IMAGES[160:]]
    guards = [ood.detect(model, loader, held_out=held_out) for loader in (labelled, bare)]
    assert isinstance(guards[0].detector, Jury)
    first, second = (guard(IMAGES[:30]) for guard in guards)
    assert torch.equal(first.score, second.score)
    assert torch.isfinite(first.score).all()
    assert torch.equal(first.logits, model(IMAGES[:30]))
    assert float(guards[0](IMAGES[160:]).is_id.double().mean()) >= 0.95
    guards[0].save(tmp_path / "guard")
    again = ood.Guard.load(tmp_path / "guard", model)(IMAGES[:30])
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(again, first, strict=True))


def test_a_guard_without_held_out_images() -> None:
    model = seeded(Net).eval()
    guard = ood.detect(model, [IMAGES])
    assert guard(IMAGES).is_id.double().mean() > 0.8
    broken = IMAGES[:3].clone()
    broken[1] = torch.nan
    assert guard(broken).is_id[1].item() is False
    with pytest.raises(DataError, match="too small"):
        ood.detect(model, [IMAGES[:50]])
    few = ood.detect(model, [IMAGES[:20]], held_out=[IMAGES[100:]])
    assert "rows apart" in few.detector.remarks[0]


def test_a_guard_on_a_model_in_float64() -> None:
    model = seeded(Net).eval().double()
    guard = ood.detect(model, [IMAGES.double()])
    assert torch.isfinite(guard(IMAGES[:5].double()).score).all()


@pytest.mark.parametrize(
    "text",
    [
        "combination(('msp', 'odin(epsilon=0.004)'), 'fisher')",
        "combination(('msp', 'odin'), 'fisher')",
        "combination(('knn(3)', 'adascale'), 'fisher')",
        "combination(('msp', 'mahalanobis(epsilon=0.001)'))",
        "combination(('msp', 'mahalanobis(epsilon=None)'), 'min')",
        "combination(('msp', 'knn(3)'), 'fisher', 0)",
    ],
)
def test_members_that_look_inside_the_network(text: str, tmp_path) -> None:
    model = spread(seeded(Net)).eval()
    detector = parse(text)
    detector.fit(ood.extract(model, [(IMAGES[:120], LABELS[:120])], layers=detector.layers, progress=False))
    if "ranks_" in detector.tunes:
        assert not detector.fitted
    ood.tune([detector], model, [(IMAGES[120:], LABELS[120:])])
    assert detector.fitted
    test = ood.extract(model, [IMAGES[:30]], layers=detector.layers, steps=detector.steps(), progress=False)
    scores = detector.score(test)
    assert torch.isfinite(scores).all()
    detector.save(tmp_path / "saved")
    assert torch.equal(load_detector(tmp_path / "saved").score(test), scores)
    held_out = [(IMAGES[120:], LABELS[120:])]
    guard = ood.detect(model, [(IMAGES[:120], LABELS[:120])], held_out=held_out, detector=parse(text))
    torch.testing.assert_close(guard(IMAGES[:30]).score, scores, rtol=1e-3, atol=1e-3)
