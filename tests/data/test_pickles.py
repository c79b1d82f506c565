"""The reader of CIFAR's pickles: it makes integer arrays, text, numbers, lists and dicts, and refuses all else."""

import pickle
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.images import noise

from oodles.data import pickles
from oodles.data.pickles import read_pickle
from oodles.data.readers import open_images
from oodles.errors import DataError

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(min_size=1),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


@given(value=VALUES, protocol=st.integers(0, 5))
def test_plain_values_are_read_as_pickle_reads_them(value, protocol):
    assert read_pickle(pickle.dumps(value, protocol)) == value


@given(
    shape=st.lists(st.integers(0, 4), min_size=1, max_size=2),
    kind=st.sampled_from(["u1", "i1", "<u2", ">i4", "<i8", "u8"]),
    order=st.sampled_from("CF"),
    protocol=st.integers(2, 5),
)
def test_integer_arrays_are_read_as_pickle_reads_them(shape, kind, order, protocol):
    array = np.asarray(np.arange(np.prod(shape)).reshape(shape).astype(kind), order=order)
    if array.size == 0:
        return
    read = read_pickle(pickle.dumps({"a": array, "b": 1}, protocol))
    assert read["b"] == 1
    assert read["a"].dtype == array.dtype
    assert np.array_equal(read["a"], array)


# Hostile ----------------------------------------------------------------------------------------


def text(value):
    return b"\x8c" + bytes([len(value)]) + value.encode()


def name(module, attribute):
    return f"c{module}\n{attribute}\n".encode()


OBJECTS = name("numpy", "ndarray") + b"(K\x04\x85" + text("O") + b"C\x20" + bytes(range(32)) + b"tR"
POINTERS = OBJECTS.replace(b"C\x20", b"\x96\x20" + bytes(7))
LAUGHS = b"\x80\x04](K\x01e" + b"".join(b"q%c](" % n + b"h%c" % n * 9 + b"e" for n in range(40))
TUPLES = b"\x80\x04K\x01" + b"".join(b"q%ch%c\x86" % (n, n) for n in range(60))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"\x80\x04" + OBJECTS + b".", id="an array of pointers"),
        pytest.param(b"\x80\x05" + POINTERS + b"K\x00K\x01s.", id="a pointer that is followed"),  # ended the process
        pytest.param(b"\x80\x04}" + text("data") + OBJECTS + b"s.", id="an array of pointers as data"),
        pytest.param(b"\x80\x04" + name("numpy", "dtype") + text("O") + b"\x85R.", id="the type of pointers"),
        pytest.param(b"\x80\x04" + name("numpy", "dtype") + text("V8") + b"\x85R.", id="a type of raw bytes"),
        pytest.param(b"\x80\x04" + name("numpy", "dtype") + LAUGHS[2:] + b"\x85R.", id="a type that is a large list"),
        pytest.param(LAUGHS + text("x") + b"\x93.", id="a name that is a large list"),
        pytest.param(b"\x80\x04}" + TUPLES[2:] + b"K\x01s.", id="a key that takes forever to hash"),
        pytest.param(b"\x80\x04K\x01r\xff\xff\xff\x7f.X", id="bytes after the end"),
        pytest.param(b"\x80\x04B\xff\xff\xff\x7fabc.", id="bytes that are not there"),
        pytest.param(b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"abc.", id="far too many bytes"),
        pytest.param(b"\x80\x04" + name("builtins", "list") + b").R.", id="a builtin"),
        pytest.param(b"\x80\x04" + name("numpy", "ndarray") + b")R.", id="a call of ndarray"),
        pytest.param(b"\x80\x04" + name("numpy", "ndarray") + b")\x81.", id="a new object"),
        pytest.param(b"\x80\x04K\x01}b.", id="the state of a number"),
        pytest.param(b"\x80\x04K\x01K\x02R.", id="a call of a number"),
        pytest.param(b"(K\x01oK\x01." + b"", id="an object of no class"),
        pytest.param(b"P12\n.", id="a persistent name"),
        pytest.param(b"\x80\x02\x82\x01.", id="an extension"),
        pytest.param(b"I" + b"9" * 100_000 + b"\n.", id="an endless number"),
        pytest.param(b".", id="an empty stack"),
        pytest.param(b"\x80\x04u.", id="no mark"),
        pytest.param(b"\x80\x04}K\x01K\x02e.", id="appending to nothing"),
        pytest.param(b"\x80\x04}K\x01a.", id="appending to a dict"),
    ],
)
def test_other_pickles_are_refused_in_one_line(tmp_path, content):
    path = tmp_path / "test_batch"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"test_batch is (a pickle, but )?not a CIFAR batch") as caught:
        open_images(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "labels",
    [
        pytest.param(lambda: nested(9), id="lists of lists of lists"),
        pytest.param(lambda: endless(), id="a list in itself"),
        pytest.param(lambda: [True, False], id="truth values"),
        pytest.param(lambda: [1.0, 2.0], id="fractions"),
        pytest.param(lambda: [-1, 3], id="a negative label"),
        pytest.param(lambda: [1, 100], id="a label too many"),
        pytest.param(lambda: [1, 10**30], id="a huge label"),
        pytest.param(lambda: np.array([[1, 2]]), id="an array of two dimensions"),
    ],
)
def test_labels_are_a_list_of_classes(tmp_path, labels):
    path = tmp_path / "train"
    path.write_bytes(pickle.dumps({"data": noise(2, 3072), "fine_labels": labels()}, 2))
    with pytest.raises(DataError, match=r"train (is a pickle, but not|has labels from -?\d+ to \d+)"):
        open_images(path)


def nested(depth):
    value = [1, 2]
    for _ in range(depth):
        value = [value] * 1000  # 1000**depth numbers
    return [value, value]


def endless():
    value = []
    value += [value, value]
    return value


def test_memory_is_bounded_by_the_size_of_the_file(monkeypatch):
    """Text that is encoded again and again, a memo with large numbers, and very many empty lists."""
    long = b"X" + struct.pack("<I", 1_000_000) + b"x" * 1_000_000 + b"q\x00"
    again = b"\x80\x02" + long + (name("_codecs", "encode") + b"h\x00" + text("latin1") + b"\x86R") * 3000 + b"."
    memo = b"\x80\x02K\x01r\xff\xff\xff\x7f."
    monkeypatch.setattr(pickles, "MAX_OPCODES", 1000)
    lists = b"\x80\x02(" + b"]" * 5000 + b"l."
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="the same text again and again"):
            read_pickle(again)
        assert read_pickle(memo) == 1
        with pytest.raises(ValueError, match="more than 1,000 instructions"):
            read_pickle(lists)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
