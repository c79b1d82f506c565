"""File names are data, and no argument ends in a traceback."""

import csv
import shutil

import pytest
from fuzz import ACCEPTED, REFUSED, command_lines
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.command_line import MODEL, NETWORK, SIZE, paint

from oodles.records.text import printable

FORGED = "a\nID        99.9  cat         b.png"
NAMES = [FORGED, "\x1b[2J\x9b.png", "[red]x[].png", "\udcff.png", "\u202egnp.png", 'q",\r.png', "plain é.png"]


@pytest.fixture
def odd(workspace, tmp_path):
    """A folder of images whose names are not plain text."""
    for name in NAMES:
        shutil.copy(workspace / "grey" / "000.png", tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 猫 [x]", "plain é 猫 [x]"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x1b[31m\x9b\x7f\x00", r"\x1b[31m\x9b\x7f\x00"),
        ("\udcff", r"\udcff"),
        ("\u2028\u202e\u200b", r"\u2028\u202e\u200b"),
    ],
)
def test_control_characters_and_invalid_text_are_escaped(text, shown):
    assert printable(text) == shown


@given(st.text(st.characters()))
def test_whatever_is_printed_is_one_line_that_can_be_encoded(text):
    line = printable(text)
    assert line.isprintable()
    assert line.encode() is not None


def test_a_name_cannot_forge_a_verdict(succeeded, fitted, odd):
    out, _ = succeeded("score", fitted / "guard", odd, *NETWORK)
    lines = out.splitlines()
    assert sorted(line.partition(f"{odd}/")[2] for line in lines) == sorted(map(printable, NAMES))
    assert all(line.isprintable() for line in lines)


def test_a_row_of_csv_is_a_line_and_json_has_the_names_as_they_are(succeeded, json_of, fitted, odd):
    out, _ = succeeded("score", fitted / "guard", odd, "--csv", *NETWORK)
    header, *rows = csv.reader(out.split("\n")[:-1])
    assert header[0] == "path"
    assert sorted(row[0] for row in rows) == sorted(printable(f"{odd}/{name}") for name in NAMES)
    verdicts = json_of("score", fitted / "guard", odd, *NETWORK)["verdicts"]
    assert sorted(each["path"] for each in verdicts) == sorted(f"{odd}/{name}" for name in NAMES)


def test_names_of_bad_images_and_other_files_stay_on_one_line(succeeded, refused, fitted, odd, tmp_path):
    (odd / "b\nerror c.png").write_bytes(b"not an image")
    (odd / "d\nerror e.txt").write_bytes(b"nor this")
    for command, what, options in (("score", "error", []), ("explain", "skipped", ["--skip-bad"])):
        out, err = succeeded(command, fitted / "guard", odd, *options, *NETWORK)
        assert rf"{what}  {odd}/b\nerror c.png: " in out
        assert r"d\nerror e.txt" in err
        assert not any(line.startswith("error") for line in err.splitlines())
    line = refused("extract", odd, "--out", tmp_path / "features", "--no-labels", *NETWORK)
    assert r"b\nerror c.png: " in line


def test_class_folders_are_names_of_files_too(succeeded, workspace, fitted, tmp_path):
    """They become the names of classes in features and guards, and from there get into verdicts and explanations."""
    classes = ["blue\nID  9.9  x", "red\x1b[31m"]
    for name in classes:
        paint(tmp_path / "train" / name, 30, (200, 60, 30), seed=1)
    out = tmp_path / "features"
    _, err = succeeded("extract", tmp_path / "train", "--out", out, *NETWORK)
    assert all(line.isprintable() for line in err.splitlines())
    calibration = ["--calibration", fitted / "test", "--id-rate", "0.5"]
    succeeded("fit", out, "--detector", "energy", *calibration, "--out", tmp_path / "guard")
    for command in ("score", "explain"):
        shown, err = succeeded(command, tmp_path / "guard", workspace / "grey" / "000.png", *NETWORK)
        assert any(printable(name) in shown for name in classes), (shown, err)
        assert all(line.isprintable() for line in shown.splitlines())
        assert not any(line.strip().startswith("ID  9.9") for line in shown.splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "-1"], "Invalid value for '--seed'"),
        (["--seed", 10**23], "2147483647"),
        (["--device", "meta"], "device='meta'"),
        (["--noise", 10**12], "Invalid value for '--noise'"),
        (["--size", 10**6], "must be at most 8192"),
        (["--mean", "1e300,0,0"], "must be finite"),
        (["--std", "1e-320,1,1"], "must be positive in every channel"),
        (["--detector", "gen(0.1, 2.5)"], "top=2.5 must be a whole number"),
        (["--limit", "-3"], "Invalid value for '--limit'"),
    ],
)
def test_numbers_that_cannot_be_used_are_refused(refused, arguments, message):
    assert message in refused("select-p", "train", "--held-out", "test", *NETWORK, *arguments)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--epochs", 10**23], "must lie between 1 and 100,000"),
        (["--batch-size", 10**23], "Invalid value for '--batch-size'"),
        (["--learning-rate", "1e308"], "must be positive, at most 1e+38"),
    ],
)
def test_recipes_that_cannot_be_run_are_refused(refused, tmp_path, option, message):
    assert message in refused("train", MODEL, "--data", "train", "--out", tmp_path / "run", *SIZE, *option)


@pytest.mark.parametrize("source", ["def net(:", "1 / 0", "import sys; sys.exit(4)", "def net(): raise KeyError('k')"])
def test_modules_and_factories_that_raise(refused, workspace, source, request):
    module = f"awkward_{abs(hash(source))}"
    (workspace / f"{module}.py").write_text(source)
    request.addfinalizer((workspace / f"{module}.py").unlink)
    message = refused("extract", "train", "--out", "o", "--model", f"{module}:net")
    assert message.startswith((f"error '{module}' cannot be imported (", f"error --model {module}:net: KeyError: 'k'"))


ARGUMENTS = st.one_of(
    st.text(st.characters(exclude_characters="\0"), max_size=20),
    st.sampled_from([*command_lines.TEXTS, *command_lines.FLAGS, *command_lines.COUNTED, *command_lines.OTHERS]),
    st.integers().map(str),
    st.floats().map(str),
)
COMMANDS = st.sampled_from(
    ["extract", "fit", "threshold", "score", "explain", "bench", "monitor", "select", "select-p", "train", ""]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[*HealthCheck])
@given(command=COMMANDS, rest=st.lists(ARGUMENTS, max_size=8))
def test_random_arguments_are_refused_in_one_line(tmp_path_factory, command, rest):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.getbasetemp())
        assert command_lines.judge([command, *rest]) in (ACCEPTED, REFUSED)
