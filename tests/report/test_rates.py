import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from oodles.report.rates import Rate


@given(total=st.integers(1, 3000), share=st.floats(0, 1))
def test_the_interval_is_wilsons(total: int, share: float) -> None:
    rate = Rate(round(share * total), total)
    known = binomtest(rate.count, total).proportion_ci(0.95, "wilson")
    assert rate.interval == pytest.approx((100 * known.low, 100 * known.high), abs=1e-9)
    assert rate.interval[0] <= rate.percent <= rate.interval[1]


def test_a_rate_of_nothing() -> None:
    rate = Rate(0, 0)
    assert rate.percent == 0
    assert rate.interval == (0, 100)
    assert rate.cell.value is None


def test_a_rate_in_words() -> None:
    assert str(Rate(95, 100)) == "95.0 % [88.8, 97.8]"
