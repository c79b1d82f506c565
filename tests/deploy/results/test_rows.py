"""A row survives CSV and JSON, whatever its names are, and what is no row is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oodles.deploy.results.rows import CSV, JSON, NOT_A_ROW, Row
from oodles.records.text import printable

FINITE = st.none() | st.floats(allow_nan=False, allow_infinity=False)
NAMES = st.text(st.characters(exclude_categories=()), min_size=1, max_size=20)
ROWS = st.builds(
    Row,
    NAMES,
    st.none() | st.integers(0, 10**6),
    st.none() | NAMES,
    FINITE,
    FINITE,
    FINITE,
    st.booleans(),
    st.none() | NAMES,
)


@given(ROWS)
def test_a_line_of_json_has_every_bit_of_a_row(row):
    line = JSON.encode(row)
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert JSON.decode(line) == row


@given(ROWS)
def test_a_line_of_csv_has_every_bit_of_a_row_with_names_escaped(row):
    line = CSV.encode(row)
    assert line.count(b"\n") == 1
    assert b"\r" not in line
    shown = {name: value and printable(value) for name, value in row._asdict().items() if isinstance(value, str)}
    assert CSV.decode(line) == row._replace(**shown)


GOOD = JSON.encode(Row("a.png", 1, "cat", 0.5, 2.0, None, True))
BAD_JSON = [
    b"",
    b"null\n",
    b"[1]\n",
    GOOD[:-9],
    GOOD.replace(b"0.5", b"NaN"),
    GOOD.replace(b"0.5", b"1e999"),
    GOOD.replace(b"0.5", b'"half"'),
    GOOD.replace(b"true", b"1"),
    GOOD.replace(b'"label": 1, ', b""),
    GOOD.replace(b'"path"', b'"input"'),
    b"[" * 100_000 + b"\n",
    b"\xff\n",
]
BAD_CSV = [
    b"\n",
    b"a.png,1,cat,0.5,2.0,,true\n",
    b"a.png,1,cat,0.5,2.0,,yes,\n",
    b"a.png,one,cat,0.5,2.0,,true,\n",
    b"a.png,1,cat,nan,2.0,,true,\n",
    b",1,cat,0.5,2.0,,true,\n",
    b'"a.png,1,cat,0.5,2.0,,true,\n',
    b"\xff,1,cat,0.5,2.0,,true,\n",
    b"a.png,1,cat,0.5,2.0,," + b"x" * 200_000 + b",\n",
]


@pytest.mark.parametrize(("lines", "line"), [*((JSON, line) for line in BAD_JSON), *((CSV, line) for line in BAD_CSV)])
def test_a_line_that_is_no_row(lines, line):
    with pytest.raises(NOT_A_ROW):
        lines.decode(line)
