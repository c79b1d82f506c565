"""Image lists: lines of a path and a class, read as OpenOOD wrote them; anything else is one clear line."""

import re

import numpy as np
import pytest
from support.images import open_image, read_array, write_image

from oodles.data.image_lists import is_unpacked, read_image_list
from oodles.errors import DataError, FileError


@pytest.fixture
def root(tmp_path):
    for seed, name in enumerate(("set/b.png", "set/a.png", "set/c d.png", "other/a.png")):
        write_image(tmp_path / "images" / name, seed=seed)
    return tmp_path / "images"


@pytest.fixture
def listed(tmp_path):
    def write(text, encoding="utf-8"):
        path = tmp_path / "test_set.txt"
        path.write_bytes(text.encode(encoding))
        return path

    return write


def refusal(path, root, classes=None):
    with pytest.raises(DataError) as caught:
        read_image_list(path, root, classes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_images_and_labels_in_the_order_of_the_lines(root, listed):
    images = read_image_list(listed("set/b.png 2\nset/a.png 0\nother/a.png 2\n"), root, classes=3)
    assert images.name == "test_set"
    assert list(images.names) == ["set/b.png", "set/a.png", "other/a.png"]
    assert images.labels.tolist() == [2, 0, 2]
    assert images.classes == ()
    for row, name in enumerate(images.names):
        assert np.array_equal(read_array(images, row), np.asarray(open_image(root / name)))


@pytest.mark.parametrize("label", [-1, 12345])
def test_the_labels_of_ood_images_are_not_checked_but_must_be_numbers(root, listed, label):
    images = read_image_list(listed(f"set/b.png {label}\nset/a.png {label}\n"), root)
    assert images.labels is None
    assert len(images) == 2
    assert "is not a path" in refusal(listed("set/a.png dog\n"), root)


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("set/a.png 1\r\n\r\nset/b.png 0\r\n", "utf-8"),
        ("\nset/a.png 1\n\n  set/b.png\t0  ", "utf-8"),
        ("set/a.png 1\n./set/b.png 0\n", "utf-8-sig"),
    ],
)
def test_line_ends_blank_lines_and_byte_order_marks_do_not_matter(root, listed, text, encoding):
    images = read_image_list(listed(text, encoding), root, classes=2)
    assert list(images.names) == ["set/a.png", "set/b.png"]
    assert images.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("set/c d.png 1", r"line 2: 'set/c d.png 1' is not a path without spaces, a space and the number of a class"),
        ("set/a.png", "line 2: 'set/a.png' is not a path without spaces"),
        ("set/a.png one", "line 2: 'set/a.png one' is not a path"),
        ("set/a.png 1.0", "line 2: 'set/a.png 1.0' is not a path"),
        ("set/a.png 99999999999999999999", "is not a path"),
        ("x" * 500 + " y z", "'" + "x" * 80 + "' is not a path"),
        ("set/a.png 3", "line 2: label 3 must lie between 0 and 2; is it the list of another set?"),
        ("set/a.png -1", "line 2: label -1 must lie between 0 and 2"),
        ("set/b.png 0", "line 2: 'set/b.png' is in line 1 too; remove one of the two"),
        ("./set/b.png 1", "line 2: './set/b.png' is in line 1 too"),
        ("/etc/passwd 1", "line 2: '/etc/passwd' leads out of"),
        ("set/../../secret.png 1", "line 2: 'set/../../secret.png' leads out of"),
        ("../images/set/a.png 1", "leads out of"),
        ("set/no.png 1", r"1 of 2 images are not below .*images \(set/no.png\); unpack the complete archive there"),
        ("set 1", r"1 of 2 images are not below"),
        ("set/\0.png 1", r"1 of 2 images are not below"),
    ],
)
def test_a_bad_line_is_named(root, listed, line, message):
    said = refusal(listed(f"set/b.png 0\n{line}\n"), root, classes=3)
    assert "test_set.txt" in said
    assert message in said or re.search(message, said), said


def test_many_missing_images_are_counted(root, listed):
    said = refusal(listed("".join(f"gone/{number}.png -1\n" for number in range(1200))), root)
    assert "1,200 of 1,200 images" in said
    assert "(gone/0.png, gone/1.png, gone/2.png, ...)" in said


def test_a_list_that_cannot_be_read(root, listed, tmp_path):
    assert "names no images" in refusal(listed("\n\n"), root)
    assert "test_set.txt is not a text file in UTF-8" in refusal(listed("set/\xe9.png 1\n", "latin-1"), root)
    with pytest.raises(FileError, match="cannot be read"):
        read_image_list(tmp_path, root)


def test_whether_the_images_of_a_list_are_there(root, listed, tmp_path):
    assert is_unpacked(listed("set/gone.png 1\n"), root), "one missing image is an error, and not a missing set"
    assert not is_unpacked(listed("\ntin/a.png -1\n"), root)
    assert not is_unpacked(listed("a.png -1\n"), tmp_path / "nowhere")
    assert is_unpacked(listed("a.png -1\n"), root)
