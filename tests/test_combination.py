import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control

from oodles.conformity import benjamini_hochberg, conformal, p_values
from oodles.detectors import Combination, combine, load_detector, parse
from oodles.detectors.combination import knots, rank
from oodles.errors import ArgumentError, NotFittedError
from oodles.features import Features
from oodles.testing import check_detector, example_features

# One scale for several detectors -----------------------------------------------------------------


@pytest.mark.parametrize("text", ["combination(('dice(0.9)', 'knn'))", "combination(('energy', 'mahalanobis'), 'min')"])
def test_combinations_keep_the_promises(text: str) -> None:
    check_detector(parse(text))


def test_ranks_are_the_slow_ones() -> None:
    reference = torch.tensor([0.0, 1.0, 4.0, 8.0])
    scores = torch.linspace(0, 8, 33)
    want = np.interp(scores, reference, [0, 1 / 3, 2 / 3, 1])
    np.testing.assert_allclose(rank(scores, reference), want, atol=1e-6)


@given(st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=30), st.floats(-200, 200, width=32))
def test_ranks_never_turn_the_order_round(values: list[float], score: float) -> None:
    reference = torch.tensor(values).sort().values
    pair = torch.tensor([score, score + 1.0])
    low, high = rank(pair, reference).tolist()
    assert low <= high
    assert low >= -0.5
    assert high <= 1.5


def test_ranks_of_what_is_no_number_or_infinite() -> None:
    ranks = rank(torch.tensor([torch.nan, torch.inf, -torch.inf]), torch.tensor([0.0, 1.0]))
    assert torch.isnan(ranks[0])
    assert ranks[1:].tolist() == [1.5, -0.5]


def test_mean_and_smallest_of_the_members_ranks() -> None:
    features = example_features(200)
    train, held_out, test = features[:100], features[100:160], features[160:]
    members = [parse(text).fit(train) for text in ("dice(0.9)", "knn(3)")]
    ranks = torch.stack([rank(member.score(test), knots(member.score(held_out))) for member in members])
    for how, want in (("mean", ranks.mean(dim=0)), ("min", ranks.amin(dim=0))):
        got = combine(["dice(0.9)", "knn(3)"], train=train, held_out=held_out, how=how)
        torch.testing.assert_close(got.score(test), want)


def test_a_scale_of_its_own_says_nothing() -> None:
    features = example_features(200)
    train, held_out, test = features[:100], features[100:160], features[160:]
    louder = Features(features.embedding * 1, logits=features.logits, labels=features.labels, head=features.head)
    one = combine(["energy", "max_logit"], train=train, held_out=held_out)
    other = combine(["energy(1)", "max_logit"], train=louder[:100], held_out=held_out)
    assert torch.equal(one.score(test), other.score(test))


def test_combinations_are_saved_with_their_ranks(tmp_path) -> None:
    features = example_features(200)
    combination = combine(["dice(0.9)", "vim"], train=features[:100], held_out=features[100:])
    combination.save(tmp_path / "saved")
    loaded = load_detector(tmp_path / "saved")
    assert isinstance(loaded, Combination)
    assert torch.equal(loaded.score(features), combination.score(features))


def test_combinations_that_make_no_sense() -> None:
    with pytest.raises(ArgumentError, match="at least two"):
        Combination(detectors=["energy"])
    with pytest.raises(ArgumentError, match="none of mean, min"):
        Combination(detectors=["energy", "msp"], how="max")
    with pytest.raises(NotFittedError, match="not been fitted"):
        Combination(detectors=["energy", "msp"]).score(example_features())


# P-values ----------------------------------------------------------------------------------------


def test_p_values_are_the_slow_ones() -> None:
    scores, held_out = torch.tensor([0.5, 2.0, 2.5, torch.nan, torch.inf]), torch.tensor([1.0, 2.0, 2.0, 3.0])
    want = [(1 + sum(other <= score for other in held_out.tolist())) / 5 for score in scores.tolist()]
    assert p_values(scores, held_out).tolist() == want
    assert p_values(scores, held_out)[3] == 0.2, "no number is as strange as can be"


@pytest.mark.parametrize("count", [9, 19, 50])
def test_p_values_are_valid_in_small_samples(count: int) -> None:
    # with scores from one law the chance of p <= a is at most a, and a itself where a (n + 1) is whole
    generator = torch.Generator().manual_seed(count)
    draws = torch.randn(4000, count + 1, generator=generator)
    values = np.array([p_values(row[:1], row[1:])[0] for row in draws])
    for level in (0.1, 0.2, 0.5):
        share = float((values <= level).mean())
        assert share <= level + 3 * np.sqrt(level * (1 - level) / len(values))
        exact = np.floor(level * (count + 1)) / (count + 1)
        assert abs(share - exact) <= 4 * np.sqrt(exact * (1 - exact) / len(values))


def test_ties_do_not_break_validity() -> None:
    generator = torch.Generator().manual_seed(3)
    draws = torch.randint(3, (4000, 20), generator=generator).float()
    values = np.array([p_values(row[:1], row[1:])[0] for row in draws])
    assert float((values <= 0.2).mean()) <= 0.2 + 3 * np.sqrt(0.2 * 0.8 / len(values))


def test_the_share_of_false_alarms_is_kept_over_a_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    shares = []
    for _ in range(300):
        held_out = torch.randn(200, generator=generator)
        id_rows, strange = torch.randn(80, generator=generator), torch.randn(20, generator=generator) - 4
        called = benjamini_hochberg(p_values(torch.cat([id_rows, strange]), held_out), 0.1)
        shares.append(called[:80].sum() / max(1, called.sum()))
        assert called[80:].mean() > 0.3, "and something is found"
    assert np.mean(shares) <= 0.1 + 3 * np.std(shares) / np.sqrt(len(shares))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.sampled_from([0.01, 0.05, 0.2, 0.5]))
def test_benjamini_hochberg_is_scipy_s(values: list[float], level: float) -> None:
    want = false_discovery_control(values, method="bh")
    got = benjamini_hochberg(values, level)
    clear = np.abs(want - level) > 1e-12
    assert (got == (want <= level))[clear].all()


def test_conformal_on_a_detector() -> None:
    features = example_features(300)
    detector = parse("mahalanobis").fit(features[:150])
    found = conformal(detector, features[150:250])
    values = found.p_values(features[250:])
    assert values.shape == (50,)
    assert 0.3 < values.mean() < 0.7, "ID rows are spread evenly"
    far = Features(features.embedding[:20] + 30, head=features.head)
    assert (found.p_values(far) == 1 / 101).all()
    assert found.strange(far, level=0.05).all()


@pytest.mark.parametrize("values", [[], [[0.5]], [1.5], [float("nan")]])
def test_what_are_no_p_values(values: list) -> None:
    with pytest.raises(ArgumentError, match="p-values are a list"):
        benjamini_hochberg(values)
    with pytest.raises(ArgumentError, match="level=2"):
        benjamini_hochberg([0.5], 2)
