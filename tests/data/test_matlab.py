"""The reader of ``.mat`` files agrees with SciPy's on intact files, and refuses damaged and hostile ones."""

import random
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import loadmat, savemat
from support.images import noise

from oodles.data.matlab import MAX_VARIABLES, read_mat
from oodles.data.readers import open_images
from oodles.errors import DataError


@settings(max_examples=25)
@given(
    kind=st.sampled_from(["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"]),
    shape=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    compressed=st.booleans(),
)
def test_arrays_are_read_as_scipy_reads_them(tmp_path_factory, kind, shape, compressed):
    path = tmp_path_factory.mktemp("m") / "a.mat"
    array = (np.random.default_rng(0).random(shape) * 100).astype(kind)
    savemat(path, {"other": "text", "X": array, "cell": {"a": 1}, "n": array}, do_compression=compressed)
    found = read_mat(path, ("X", "n", "missing"))
    assert sorted(found) == ["X", "n"]
    for name, (values, stored_as) in found.items():
        expected = loadmat(path)[name]
        assert stored_as == expected.dtype
        assert np.array_equal(values, expected)


def element(kind, content):
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def matrix(name, values, *, flags=9, shape=None, stored=2, size=None):
    """A variable as MATLAB writes it; the arguments override what would be true."""
    parts = element(6, struct.pack("<II", flags, 0))
    parts += element(5, np.array(values.shape if shape is None else shape).astype("<i4").tobytes())
    parts += element(1, name.encode())
    raw = values.tobytes("F")
    parts += struct.pack("<II", stored, len(raw) if size is None else size) + raw + bytes(-len(raw) % 8)
    return struct.pack("<II", 14, len(parts)) + parts


def mat_file(*variables):
    head = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"
    return head + b"".join(variables)


def packed(variable):
    content = zlib.compress(variable)
    return struct.pack("<II", 15, len(content)) + content


def test_doubles_that_matlab_stored_as_small_integers_are_labels_but_not_digits(tmp_path):
    digits, numbers = noise(32, 32, 3, 2), np.array([[10], [3]], dtype=np.uint8)
    (tmp_path / "t.mat").write_bytes(mat_file(matrix("X", digits), matrix("y", numbers, flags=6)))
    assert open_images(tmp_path / "t.mat").labels.tolist() == [0, 3]
    (tmp_path / "t.mat").write_bytes(mat_file(matrix("X", digits, flags=6), matrix("y", numbers)))
    with pytest.raises(DataError, match="does not hold 32x32 colour images"):
        open_images(tmp_path / "t.mat")


@pytest.mark.parametrize("numbers", [[1], *([1, value] for value in (np.nan, np.inf, -np.inf, 0.5, -1, 11, 1e300))])
def test_labels_that_are_no_digits_are_refused(tmp_path, numbers):
    savemat(tmp_path / "t.mat", {"X": noise(32, 32, 3, 2), "y": np.array(numbers)[:, None]})
    with pytest.raises(DataError, match=r"t\.mat does not hold 32x32 colour images, each with a digit"):
        open_images(tmp_path / "t.mat")


DIGITS, LABELS = noise(32, 32, 3, 2), matrix("y", np.array([[1], [2]], dtype=np.uint8))
X = matrix("X", DIGITS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "not a MATLAB file", id="empty"),
        pytest.param(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM", "not a MATLAB file", id="version 7.3"),
        pytest.param(mat_file(X), "it has no 'y'", id="no labels"),
        pytest.param(mat_file(packed(b""), X), "it has no 'y'", id="nothing packed"),
        pytest.param(mat_file(X, LABELS, X), "X twice", id="digits twice"),
        pytest.param(mat_file(X[:-100], b""), "cut short", id="cut short"),
        pytest.param(mat_file(LABELS, packed(X)[:-9]), "cut short", id="packed and cut short"),
        pytest.param(mat_file(LABELS, packed(X + bytes(99))), "longer than it says", id="packed and too long"),
        pytest.param(mat_file(LABELS, packed(X)[:-4] + bytes(4)), "incorrect data check", id="a wrong checksum"),
        pytest.param(mat_file(LABELS, matrix("X", DIGITS, size=1 << 31)), "cut short", id="a false size"),
        pytest.param(
            mat_file(LABELS, matrix("X", DIGITS, shape=(32, 32, 3, 699_050), size=32 * 32 * 3 * 699_050)),
            "cut short",
            id="a false size and shape",
        ),
        pytest.param(mat_file(LABELS, matrix("X", DIGITS, shape=[1] * 50_000)), "of shape", id="a long shape"),
        pytest.param(mat_file(LABELS, matrix("X", DIGITS, shape=(-32, -32, 3, 2))), "of shape", id="a negative shape"),
        pytest.param(mat_file(LABELS, matrix("X", DIGITS, shape=(32, 32, 3, 0))), "of shape", id="an empty shape"),
        pytest.param(mat_file(LABELS, matrix("X", DIGITS, flags=0x809)), "not an array of numbers", id="complex"),
        pytest.param(mat_file(LABELS, matrix("X", DIGITS, flags=1)), "not an array of numbers", id="a cell"),
        pytest.param(mat_file(LABELS, matrix("X", DIGITS, stored=14)), "not an array of numbers", id="nested"),
        pytest.param(mat_file(*[element(99, b"")] * (MAX_VARIABLES + 1)), "more than 100 variables", id="many"),
        pytest.param(mat_file(matrix("x" * 5000, DIGITS)), "it has no 'X'", id="a long name"),
        pytest.param(
            mat_file(LABELS, packed(matrix("X", np.zeros((32, 32, 3, 9000), dtype=np.uint8)))),
            "more than .* unpacked",
            id="packed a thousandfold",
        ),
    ],
)
def test_hostile_files_are_refused_in_one_line(tmp_path, content, message):
    (tmp_path / "t.mat").write_bytes(content)
    with pytest.raises(DataError, match=rf"t\.mat is not an SVHN file with X and y \(.*({message})") as caught:
        open_images(tmp_path / "t.mat")
    assert "\n" not in str(caught.value)


def test_a_changed_byte_of_a_packed_file_is_noticed(tmp_path):
    """Single bytes, of which some crash SciPy's reader; the checksum of the packed data covers all pixels."""
    path = tmp_path / "t.mat"
    savemat(path, {"X": noise(32, 32, 3, 2), "y": np.array([[1], [2]], dtype=np.uint8)}, do_compression=True)
    intact, rng = path.read_bytes(), random.Random(0)
    expected = open_images(path)
    for _ in range(150):
        content = bytearray(intact)
        content[rng.randrange(128, len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        try:
            found = open_images(path)
        except DataError:
            continue
        assert found.labels.tolist() == expected.labels.tolist()
        for row in range(2):
            assert np.array_equal(np.asarray(found.read(row)), np.asarray(expected.read(row)))
