"""Damaged and hostile files in place of an exported guard: one line that says what is wrong, and nothing else happens.

Here the checksums are those of the original. Forged guards, whose checksums are right, are in ``test_forgeries.py``.
"""

import io
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest
from support import exported_guards as made
from support.exported_guards import GRAPH, NAMES, RECORD, TENSORS, in_limited_process, refusal

from oodles.deploy.artefact import is_exported
from oodles.deploy.exported import ExportedGuard


@pytest.fixture(autouse=True)
def nothing_is_written(place, tmp_path):
    """The working folder is empty, and is so afterwards; so is the folder in which the guards' folders lie."""
    yield
    assert not [*(tmp_path / "work").iterdir()]
    assert {path.name for path in tmp_path.iterdir()} <= {"work", "place", "outside"}


class Touch:
    """Unpickled, it creates a file."""

    def __reduce__(self):
        return (open, ("executed", "w"))


PICKLE = pickle.dumps(Touch())


def test_the_original_opens(parts, place):
    path = made.write(parts, place / "guard.zip")
    assert is_exported(path)
    assert ExportedGuard.open(path)(made.inputs("vectors")).score.shape == (7,)


# Damage -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kept", [0.0, 0.5, 1.0])
def test_a_truncated_member_is_refused(parts, place, name, kept):
    cut = parts[name][: int(kept * (len(parts[name]) - 2))]
    assert name in refusal(made.write({**parts, name: cut}, place / "guard.zip"))


@pytest.mark.parametrize("kept", [0, 10, 1000, -1, -22, -23, -100])
def test_a_truncated_zip_is_refused(parts, place, kept):
    path = place / "guard.zip"
    path.write_bytes(made.zipped(parts)[:kept])
    assert "is not a .zip that `oodles export` wrote" in refusal(path)
    assert not is_exported(path)


@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_bit_is_found_wherever_it_is(parts, place, name):
    """Any bit of the graph and the tensors; of the record, one in a name, in a number and in its checksum."""
    content = parts[name]
    places = np.linspace(0, len(content) - 1, 12).astype(int).tolist()
    if name == RECORD:
        places = [content.index(field) + len(field) for field in (b'"model": "', b'"rows": ', b'"seal": "')]
    for number, at in enumerate(places):
        changed = bytearray(content)
        changed[at] ^= 1
        line = refusal(made.write({**parts, name: bytes(changed)}, place / f"{number}.zip"))
        assert "altered" in line or "not readable JSON" in line


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_member_is_refused(parts, place, name):
    path = made.write({other: content for other, content in parts.items() if other != name}, place / "guard.zip")
    assert "does not have each of its members once" in refusal(path)


# What is not a guard at all ---------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_pickle_in_place_of_a_member_is_not_run(parts, place, name):
    refusal(made.write({**parts, name: PICKLE}, place / "guard.zip"))


def test_a_pickle_as_a_further_member_is_refused(parts, place):
    path = made.write({**parts, "data.pkl": PICKLE}, place / "guard.zip")
    assert "has the member 'data.pkl'" in refusal(path)


@pytest.mark.parametrize("content", [b"", b"PK", PICKLE, b"PK\5\6" + bytes(18), bytes(1000)])
def test_other_files_are_refused(place, content):
    path = place / "guard.zip"
    path.write_bytes(content)
    assert not is_exported(path)
    refusal(path)


def test_what_does_not_exist_is_refused(place):
    assert "does not exist" in refusal(place / "guard.zip")


# Archives ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["../x", "/x", "a/../../x", "..\\x", "guard/", "guard.json/", "C:\\x", "x\x1b[31m", "x\ny", "é" * 2000]
)
def test_a_member_with_another_name_is_refused_and_written_nowhere(parts, place, name):
    line = refusal(made.write({**parts, name: b"text"}, place / "guard.zip"))
    assert "is not a .zip" in line or "has the member" in line
    assert line.isprintable()


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", NAMES)
def test_a_member_that_is_there_twice_is_refused(parts, place, name):
    buffer = io.BytesIO(made.zipped(parts))
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr(name, parts[name])
    (place / "guard.zip").write_bytes(buffer.getvalue())
    assert "does not have each of its members once" in refusal(place / "guard.zip")


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressed_members_are_refused(parts, place, method):
    (place / "guard.zip").write_bytes(made.zipped(parts, method))
    assert "guard.json is compressed or encrypted" in refusal(place / "guard.zip")


@pytest.mark.parametrize(
    ("field", "layout", "value", "said"),
    [
        (8, "<H", 1, "compressed or encrypted"),
        *((field, "<I", size, "") for field in (20, 24) for size in (0, 1, 1 << 20, 0xFFFFFFFE)),
        *((42, "<I", offset, "") for offset in (1, 1 << 20, 0xFFFFFFFE)),
    ],
)
def test_encryption_and_wrong_sizes_or_offsets_in_the_list_of_members(parts, place, field, layout, value, said):
    content = bytearray(made.zipped(parts))
    start = content.index(b"PK\1\2")
    while content[start : start + 4] == b"PK\1\2":
        struct.pack_into(layout, content, start + field, value)
        start += 46 + sum(struct.unpack_from("<HHH", content, start + 28))
    (place / "guard.zip").write_bytes(content)
    assert said in refusal(place / "guard.zip")


def test_a_zip_in_a_zip_is_not_opened(parts, place):
    refusal(made.write({"guard.zip": made.zipped(parts)}, place / "guard.zip"))
    refusal(made.write({**parts, GRAPH: made.zipped(parts)}, place / "other.zip"))


def test_a_bomb_takes_no_memory(parts, place):
    """A member that would unpack to 512 MB, with the right size in the list of members and with a small one."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(RECORD, parts[RECORD], zipfile.ZIP_STORED)
        archive.writestr(TENSORS, parts[TENSORS], zipfile.ZIP_STORED)
        with archive.open(GRAPH, "w") as member:
            for _ in range(32):
                member.write(bytes(1 << 24))
    honest = buffer.getvalue()
    size = struct.pack("<I", 1 << 29)
    assert size in honest
    for number, content in enumerate((honest, honest.replace(size, struct.pack("<I", len(parts[GRAPH]))))):
        path = place / f"{number}.zip"
        path.write_bytes(content)
        line, needed = in_limited_process(path, 400)
        assert "guard.onnx is compressed or encrypted" in line
        assert needed < 100


def test_a_long_list_of_members_is_not_read(parts, place):
    """A million members would become a million objects."""
    entry = made.zipped({"x": b""})[31:-22]
    assert entry.startswith(b"PK\1\2")
    listed = entry * 1_000_000
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 3, 3, len(listed), 0, 0)
    path = place / "guard.zip"
    path.write_bytes(listed + end)
    line, needed = in_limited_process(path, 1000)
    assert "is not a .zip that `oodles export` wrote" in line
    assert needed < 100


@pytest.mark.parametrize("listed", [1 << 20, 1 << 62])
def test_a_list_of_members_whose_size_is_in_a_further_record_is_limited_too(parts, place, listed):
    content = made.zipped(parts)
    _, _, _, _, _, size, offset, _ = struct.unpack("<IHHHHIIH", content[-22:])
    for number, (length, accepted) in enumerate(((size, True), (listed, False))):
        record = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, 3, 3, length, offset)
        locator = struct.pack("<IIQI", 0x07064B50, 0, len(content) - 22, 1)
        path = place / f"{number}.zip"
        path.write_bytes(content[:-22] + record + locator + content[-22:])
        if accepted:
            ExportedGuard.open(path)
        else:
            refusal(path)


# Links, pipes and devices -----------------------------------------------------------------------


def test_a_link_is_refused(parts, place, tmp_path):
    path = place / "guard.zip"
    path.symlink_to(made.write(parts, tmp_path / "outside"))
    assert "is a symbolic link, which is not allowed" in refusal(path)


def test_a_link_in_a_zip_is_content_and_not_followed(parts, place, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in NAMES:
        (outside / name).write_bytes(parts[name])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in NAMES:
            info = zipfile.ZipInfo(name)
            info.external_attr = 0o120777 << 16
            archive.writestr(info, str(outside / name))
    (place / "guard.zip").write_bytes(buffer.getvalue())
    assert "not readable JSON" in refusal(place / "guard.zip")


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_pipes_folders_and_devices_are_refused_at_once(place, kind):
    path = place / "guard.zip"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    assert not is_exported(path)
    refusal(path)
