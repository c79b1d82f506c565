"""Arguments are checked before torch is imported."""

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest
from support.command_line import MODEL

from oodles.cli import checks
from oodles.cli.checks import read_class_names
from oodles.cli.options import ImageOptions
from oodles.data.transforms import CIFAR, Transform
from oodles.errors import ArgumentError, DataError, FileError

IMAGES = ["--model", MODEL, "--out", "o"]
HELD_OUT = ["--held-out", "test", "--model", MODEL]
BENCH = ["bench", "--model", MODEL, "--test", "test", "--ood", "grey=grey", "--train"]

MISTYPED = [
    (["extract", "nothere", *IMAGES], "nothere does not exist"),
    (["extract", "train", *IMAGES, "--checkpoint", "nothere.pt"], "'nothere.pt' does not exist"),
    (["extract", "train", *IMAGES, "--size", "0"], "size=0 must lie between 1"),
    (["extract", "train", *IMAGES, "--mean", "a,b,c"], "--mean 'a,b,c' must be numbers"),
    (["extract", "train", *IMAGES, "--std", "1,0,1"], "must be positive in every channel"),
    (["extract", "train", *IMAGES, "--limit", "0"], "Invalid value for '--limit'"),
    (["extract", "train", *IMAGES, "--classes", "nothere.txt"], "nothere.txt does not exist"),
    (["fit", "nothere", "--out", "o"], "nothere does not exist"),
    (["fit", "train", "--out", "o"], "train does not hold features"),
    (["fit", "train", "--out", "o", "--id-rate", "95"], "it is a fraction: 0.95, not 95"),
    (["fit", "features", "--out", "one.pt"], "'one.pt' is a file"),
    (
        ["fit", "train/red/000.png", "--out", "o"],
        "000.png does not hold features; give a folder written by `oodles extract`",
    ),
    (
        ["threshold", "nothere", "--features", "features"],
        "nothere does not exist; give a folder written by `oodles fit`",
    ),
    (["threshold", "train", "--features", "features"], "train is not a guard"),
    (["threshold", "guard", "--features", "train"], "train does not hold features"),
    (["threshold", "guard", "--features", "features", "--id-rate", "1"], "id_rate=1.0 must lie strictly"),
    (["score", "nothere"], "nothere does not exist"),
    (["score", "guard", "nothere"], "nothere does not exist"),
    (
        ["score", "guard", "train", "--model", MODEL, "--checkpoint", "nothere.pt"],
        "'nothere.pt' does not exist",
    ),
    (["score", "guard", "train", "--std", "1,1"], "must have as many values as images have channels"),
    (["score", "guard"], "score needs an input besides the guard"),
    (["score", "train", "test", "--model", MODEL], "--model needs a guard, and train is none"),
    (["score", "train", "--batch-size", "0"], "Invalid value for '--batch-size'"),
    (["score", "train", "--workers", "0"], "Invalid value for '--workers'"),
    (["score", "train", "--csv", "--json"], "--csv and --json exclude each other"),
    (["explain", "guard", "nothere"], "nothere does not exist"),
    (
        ["explain", "guard", "train", "--train", "nothere"],
        "nothere does not exist; give a folder written by `oodles extract`",
    ),
    (["explain", "guard", "features"], "features holds features; explain needs the images themselves"),
    (["select", "nothere", *HELD_OUT], "nothere does not exist"),
    (["select", "train", *HELD_OUT, "--held-out", "nothere"], "nothere does not exist"),
    (["select", "train", *HELD_OUT, "--checkpoint", "nothere.pt"], "'nothere.pt' does not exist"),
    (["select-p", "nothere", *HELD_OUT], "nothere does not exist"),
    (["select-p", "train", *HELD_OUT, "--held-out", "nothere"], "nothere does not exist"),
    (["select-p", "train", *HELD_OUT, "--resize", "1"], "size=224 must lie between 1 and resize=1"),
    ([*BENCH, "nothere"], "nothere does not exist"),
    ([*BENCH, "train", "--ood", "more=nothere"], "nothere does not exist"),
    ([*BENCH, "train", "--checkpoint", "nothere.pt"], "'nothere.pt' does not exist"),
    ([*BENCH, "train", "--mean", "1,2"], "must have as many values as images have channels"),
    (["bench", "cifar10", "--data", "nothere"], "--data nothere does not exist"),
    (["bench", "cifar11"], "suite 'cifar11' must be one of cifar10, cifar100, imagenet"),
    (["analyze", "nothere", "--out", "o"], "nothere/train does not exist"),
    (["analyze", "train", "--out", "o"], "train/train does not exist"),
    (["train", "small", "--data", "nothere", "--out", "o"], "nothere does not exist"),
    (["train", "small", "--data", "train", "--test", "nothere", "--out", "o"], "nothere does not exist"),
    (["train", "small", "--data", "grey", "--out", "o"], "grey has no labels"),
    (["train", "large", "--data", "train", "--out", "o"], "'large' must be one of densenet101, small"),
    (["demo", "--out", "one.pt"], "'one.pt' is a file"),
]

PROGRAM = """
    import contextlib, io, json, sys
    from oodles.cli import main

    results = []
    for arguments in json.load(sys.stdin):
        sys.argv = ["oodles", *arguments]
        printed = io.StringIO()
        code = 0
        try:
            with contextlib.redirect_stderr(printed):
                main()
        except SystemExit as ended:
            code = ended.code
        results.append([code, printed.getvalue(), "torch" in sys.modules])
    json.dump(results, sys.stdout)
"""


def test_mistyped_arguments_are_reported_without_importing_torch(workspace):
    for name, record in (("guard", "guard.json"), ("features", "manifest.json")):
        (workspace / name).mkdir(exist_ok=True)
        (workspace / name / record).write_text("{}")
    command, given = [sys.executable, "-c", textwrap.dedent(PROGRAM)], json.dumps([each for each, _ in MISTYPED])
    options = {"cwd": workspace, "env": {"PATH": "", "COLUMNS": "500"}, "timeout": 120}
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=True, **options)
    results = json.loads(done.stdout)
    for (arguments, message), (code, printed, imported) in zip(MISTYPED, results, strict=True):
        assert code == 2, arguments
        assert printed.startswith("error "), (arguments, printed)
        assert message in printed
        assert printed.count("\n") == 1, printed
        assert not imported, f"torch was imported by {arguments}"


def test_image_options_become_a_transform():
    assert ImageOptions().transform().size == 224
    assert ImageOptions(size=8).transform(CIFAR) == replace(CIFAR, size=8, resize=8)
    transform = ImageOptions(size=8, resize=10, mean="0.1, 0.2, 0.3", std="1,1,2").transform()
    assert transform == Transform(8, 10, (0.1, 0.2, 0.3), (1, 1, 2))
    assert ImageOptions(resize=100).given() == {"resize": 100}, "a guard may have a smaller size"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resize": 0}, "resize=0"),
        ({"size": 8, "resize": 7}, "size=8 must lie between 1 and resize=7"),
        ({"size": 8, "mean": "nan,0,0"}, "must be finite"),
        ({"size": 8, "std": "1,inf,1"}, "must be finite"),
        ({"size": 8, "std": "1,-1,1"}, "must be positive"),
    ],
)
def test_image_options_that_make_no_sense(options, message):
    with pytest.raises(ArgumentError, match=message):
        ImageOptions(**options)


def test_class_names_are_read_from_a_file(tmp_path):
    file = tmp_path / "names.txt"
    file.write_bytes("﻿cat\r\n  sea lion \r\nçay\r\n\r\n".encode())
    assert read_class_names(file) == ["cat", "sea lion", "çay"]


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"cat\n\ndog\n", DataError, "has no class name in line 2"),
        (b"", DataError, "has no class name in line 1"),
        (b"\xff\xfe\x00", FileError, "is not a text file in UTF-8"),
    ],
)
def test_files_that_do_not_name_classes(tmp_path, content, error, message):
    (tmp_path / "names.txt").write_bytes(content)
    with pytest.raises(error, match=message):
        read_class_names(tmp_path / "names.txt")


def test_names_of_classes_are_read_from_files_only(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    for path, message in ((tmp_path, "Is a directory"), (tmp_path / "pipe", "is not a regular file")):
        with pytest.raises(FileError, match=message):
            read_class_names(path)
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    monkeypatch.setattr(checks, "MAX_BYTES", 7)
    with pytest.raises(FileError, match="has 8 bytes"):
        read_class_names(tmp_path / "names.txt")
