import numpy as np
import pytest
from support.images import noise

from oodles.data.arrays import MAX_PIXELS, read_array
from oodles.errors import DataError


@pytest.mark.parametrize("shape", [(4, 5, 6, 3), (5, 6, 3), (4, 5, 6), (4, 5, 6, 1), (4, 5, 6, 4)], ids=str)
@pytest.mark.parametrize("version", [(1, 0), (2, 0)], ids=str)
def test_images_are_named_by_their_place(tmp_path, shape, version):
    pixels = noise(*shape)
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array(file, pixels, version=version)
    images = read_array(tmp_path / "a.npy")
    rows = pixels.reshape(-1, 5, 6, *(shape[3:] or ((3,) if shape[-1] == 3 else ())))
    assert images.names == [f"{tmp_path / 'a.npy'}[{row}]" for row in range(len(rows))]
    for row, expected in enumerate(rows):
        np.testing.assert_array_equal(np.asarray(images.read(row)), expected.squeeze())


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 4, 4, 3), np.float32),
        noise(2, 3, 5, 5),
        noise(2, 4, 4, 6),
        noise(4, 4),
        np.asfortranarray(noise(2, 4, 4, 3)),
        np.zeros((0, 4, 4, 3), np.uint8),
        np.zeros((2, 0, 4, 3), np.uint8),
    ],
)
def test_other_arrays_are_refused(tmp_path, array):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(DataError, match=r"a\.npy holds .*; give (uint8|1 to)"):
        read_array(tmp_path / "a.npy")


def test_objects_are_never_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (tmp_path.joinpath("trapped").touch, ())

    np.save(tmp_path / "a.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"is not a complete NumPy file.*objects"):
        read_array(tmp_path / "a.npy")
    assert not (tmp_path / "trapped").exists()


def header(shape):
    described = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}"
    return b"\x93NUMPY\x01\x00v\x00" + described.encode().ljust(117) + b"\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a complete NumPy file"),
        (b"\x93NUMPY\x01\x00", "is not a complete NumPy file"),
        (b"\x93NUMPY\x09\x00", "is not a complete NumPy file"),
        (b"\x93NUMPY\x01\x00v\x00" + b"(" * 118, "is not a complete NumPy file"),
        (header((10**9, 4, 4, 3)), "is not a complete NumPy file"),
        (header((2**62, 2**10, 2**10, 3)), "is not a complete NumPy file"),
        (header((-1, 4, 4, 3)), "is not a complete NumPy file"),
        (header((2, 4, 4, 3))[:60], "is not a complete NumPy file"),
    ],
)
def test_damaged_and_forged_files_are_refused_before_memory_is_taken(tmp_path, content, said):
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(DataError, match=said):
        read_array(tmp_path / "a.npy")


def test_images_with_too_many_pixels_are_refused(tmp_path):
    with (tmp_path / "a.npy").open("wb") as file:
        file.write(header((1, 10**5, 10**5, 3)))
        file.truncate(1 << 35)  # nothing is on disk
    with pytest.raises(DataError, match=f"at most {MAX_PIXELS:,} pixels"):
        read_array(tmp_path / "a.npy")


def test_only_regular_files(tmp_path):
    (tmp_path / "a.npy").mkdir()
    with pytest.raises(DataError, match="is not a regular file"):
        read_array(tmp_path / "a.npy")
