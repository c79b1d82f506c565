"""Command lines: valid ones in which arguments are replaced, added, dropped and repeated, on files with hostile names.

The command runs in this process. It must end with exit code 0 or 2 (1 is a bug that the command line reported), refuse
in one line, and print nothing that a name of a file could have forged.
"""

import io
import json
import os
import random
import re
import shutil
import sys
import textwrap
import warnings
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

import torch
from support.command_line import MODEL, MODULE, SIZE, paint

from oodles import cli
from oodles.models import build_model

from . import ACCEPTED, NON_FINITE, REFUSED, TRACEBACK

ROUNDS, SHORT, CHUNK = 3000, 25, 250

AWKWARD_MODELS = """
    import sys
    import torch
    from torch import nn
    from tiny_net_of_the_cli_tests import net

    class Failing(nn.Module):
        def __init__(self, error):
            super().__init__()
            self.net, self.error = net(), error

        def forward(self, images):
            if self.error is None:
                return torch.full((len(images), 2), torch.nan)
            raise self.error

    def multi_line(): return Failing(RuntimeError("a\\nb\\nc"))
    def with_a_key(): return Failing(KeyError("[red]key"))
    def leaving(): return Failing(SystemExit(3))
    def silent(): return Failing(AssertionError())
    def not_a_number(): return Failing(None)
    def no_factory(): raise ZeroDivisionError("in the factory")
    def leaves(): sys.exit(3)
"""
BROKEN_MODULES = {"wrong_syntax": "def f(:", "raises": "1 / 0", "exits": "import sys; sys.exit(4)"}
MODELS = (
    *(MODEL, f"{MODEL}(3)", f"{MODEL}(0)", f"{MODEL}(-1)", f"{MODEL}(classes=10**99)", f"{MODEL}(classes='2')"),
    *("math:pi", "os:getcwd", "builtins:dict(a=1)", "json:loads('x')", "a:b", ":net", "tiny_net_of_the_cli_tests"),
    *(f"awkward:{name}" for name in ("multi_line", "with_a_key", "leaving", "silent", "not_a_number", "no_factory")),
    *("awkward:leaves", "awkward:missing", "awkward:Failing(None)", *(f"{name}:net" for name in BROKEN_MODULES)),
    "torch.nn:Linear",
)
TEXTS = (
    *("", " ", "-", "--", "\n", "a\nb", "\r", "\x1b[31mred", "[red]x[/red]", "[/]", ":boom:", "%s", "{0}", "\udcff"),
    *("é" * 300, "../" * 50, "/dev/null", "~", "x" * 5000, "nan", "1e999", "0x10", "١٢", "\u202egnp.exe", "None", "-1"),
)
NAMES = ("a\nID            9.9  cat         b.png", "\x1b[2J.png", "[red].png", "\udcff.png", "a,b\r.png", " .png")
COUNTS = ("0", "-1", "1", "2", "3", "7", "0x10", "1e3", "2.5", str(10**9), str(10**10), str(10**23), "9" * 5000)
FRACTIONS = ("0", "1", "0.5", "0.9", "-0.1", "95", "nan", "inf", "-inf", "1e-320", "1e308", "0.99999999999", "1_0")
CHANNELS = ("0.5,0.5,0.5", "0,0,0", "1e300,1,1", "1e-320,1,1", "nan,0,0", "1,2", "1,2,3,4", "a,b,c", ",,", "-1,-1,-1")
SPECS = (
    *("msp", "dice(0.5)", "knn(3)", "react(90)+dice(0.5)+energy", "default", "odin(1000, 0.004)", "mahalanobis", "vim"),
    *("gen(0.1, 2.5)", "gen(0.1, -3)", "openmax(tail=2.5)", "energy(1e23)", f"knn(0x{'f' * 9000})", "weiper(10**9)"),
    *("weiper(100000000)", "knn(1000000000000)", "dice(nan)", "dice(p=0.5, p=0.5)", "+", "dice()", "dice(0.5", "a:b"),
    *("os:system", "__import__('os')", "lambda: 0", "dice(0.5)+" * 300 + "energy", "(" * 300),
    "rank_ensemble(('msp',))",
)
DEVICES = ("cpu", "cuda", "cuda:99", "meta", "mps", "xla", "cpu:7", "privateuseone", "\n")
OTHERS = {
    "--epochs": ("0", "-1", "1", "2", "0x10", str(10**10), str(10**23)),
    **dict.fromkeys(("--id-rate", "--max-ood-rate", "--error", "--p", "--learning-rate"), FRACTIONS),
    **dict.fromkeys(("--mean", "--std"), CHANNELS),
    **dict.fromkeys(("--detector", "--for"), SPECS),
    "--device": DEVICES,
    "--model": MODELS,
    "--head": ("4", "0", "nothing", ""),
    "--ood": ("green=PATH", "=PATH", "a=", "train=PATH", "é=PATH", "a/b=PATH"),
    "--table": ("main", "all", "sweep", "msp", "sparsification", "selection"),
    "--without": ("zz", "svhn"),
    "--recipe": ("paper", "godin", "one-cycle"),
    "--head-type": ("linear", "deconf"),
    "--plugin": (*BROKEN_MODULES, "json", "awkward"),
}
COUNTED = (
    *("--size", "--resize", "--batch-size", "--workers", "--threads", "--limit", "--seed", "--count", "--noise"),
    *("--class", "--false-alarm-every", "--minimum", "--cooldown", "--window"),
)
FLAGS = (
    *("--json", "--csv", "--skip-bad", "--resume", "--check", "--half", "--fine", "--force", "--intervals"),
    *("--published", "--labels", "--no-labels", "--resume", "--list"),
)


class Run(NamedTuple):
    code: object
    out: str
    err: str


@cache
def workspace() -> Path:
    """What a user has: networks, images, features and a guard; and what somebody may have slipped in."""
    folder = Path(mkdtemp(prefix="user-"))
    modules = {MODEL.partition(":")[0]: MODULE, "awkward": AWKWARD_MODELS, **BROKEN_MODULES}
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    sys.path.insert(0, str(folder))
    for name, colour in (("blue", (30, 60, 200)), ("red", (200, 60, 30))):
        paint(folder / "train" / name, 12, colour, seed=1)
        paint(folder / "test" / name, 6, colour, seed=2)
    paint(folder / "odd", 1, (9, 9, 9), seed=3)
    for name in NAMES:
        shutil.copy(folder / "odd" / "000.png", folder / "odd" / name)
    (folder / "odd" / "x\ny.txt").write_text("not an image")
    (folder / "bad").mkdir()
    (folder / "bad" / "a\nerror b.png").write_bytes(b"not an image either")
    (folder / "empty").mkdir()
    (folder / "names").write_text("cat\ndog\n")
    os.mkfifo(folder / "pipe.png")
    (folder / "loop").symlink_to(folder / "loop")
    torch.save(build_model(MODEL).state_dict(), folder / "one.pt")
    network = ["--model", MODEL, "--checkpoint", folder / "one.pt", *SIZE]
    for part in ("train", "test"):
        _succeed("extract", folder / part, "--out", folder / f"{part}-features", *network)
    fit = ("--calibration", folder / "test-features", "--detector", "dice(0.5)", "--id-rate", "0.5")
    _succeed("fit", folder / "train-features", "--out", folder / "guard", *fit)
    _succeed("score", folder / "guard", folder / "odd", "--out", folder / "results.csv", *network)
    return folder


def _succeed(*arguments: object) -> None:
    done = run_command(list(map(str, arguments)))
    assert done.code == 0, done


def bases(user: Path, place: Path) -> list[list[str]]:
    network = ["--model", MODEL, "--checkpoint", user / "one.pt", *SIZE]
    train, test, odd, guard = user / "train", user / "test", user / "odd", user / "guard"
    features, held_out = user / "train-features", user / "test-features"
    own, stored = place / "guard", ["--store", place]
    lines: list[Sequence[object]] = [
        ["extract", train, "--out", place / "features", *network],
        ["extract", odd, "--out", place / "features", "--no-labels", *network],
        ["fit", features, "--calibration", held_out, "--id-rate", "0.5", "--out", own, "--force"],
        ["threshold", own, "--features", held_out, "--id-rate", "0.5"],
        ["score", guard, odd, *network],
        ["score", guard, odd, "--json", *network],
        ["score", guard, odd, "--csv", *network],
        ["score", guard, held_out, user / "bad", odd, *network],
        ["score", guard, odd, "--out", place / "results.csv", "--resume", *network],
        ["score", guard, odd, "--out", place / "results.parquet", "--max-ood-rate", "1", *network],
        ["explain", guard, odd, "--train", features, *network],
        ["report", guard, "--features", held_out, "--ood", f"odd={features}", "--out", place / "report.html"],
        [
            "monitor",
            user / "results.csv",
            *("--guard", guard, "--in-order", "--out", own / "a.svg"),
            "--state",
            place / "state.json",
        ],
        ["select", train, "--held-out", test, "--count", "3", "--detector", "msp", "--detector", "knn(3)", *network],
        ["select-p", train, "--held-out", test, "--noise", "3", *network],
        ["train", MODEL, "--data", train, "--out", place / "run", "--epochs", "1", "--batch-size", "8", *SIZE],
        ["bench", *network, "--train", train, "--test", test, "--ood", f"odd={odd}", "--detector", "msp", *stored],
        ["bench", "cifar10", "--data", user, "--without", "svhn"],
        ["analyze", user, "--out", place / "figures", "--p", "0.5"],
        ["data", "list", "--data", user],
        ["data", "fetch", "nothing", "--data", place],
        ["detectors"],
    ]
    return [list(map(str, line)) for line in lines]


def hostile(generator: random.Random, place: Path) -> list[str]:
    user = workspace()
    shutil.copytree(user / "guard", place / "guard")
    line = generator.choice(bases(user, place))
    for _ in range(generator.choice((1, 1, 2, 3))):
        line = generator.choice((_replace, _replace, _replace, _add, _add, _drop, _repeat))(generator, line, user)
    return line


def _replace(generator: random.Random, line: list[str], user: Path) -> list[str]:
    place = generator.randrange(len(line))
    before = line[place - 1] if place else ""
    if line[place].startswith("--"):
        return [*line[:place], generator.choice(("--nothing", "-x", *FLAGS)), *line[place + 1 :]]
    return [*line[:place], _value(generator, before, user), *line[place + 1 :]]


def _add(generator: random.Random, line: list[str], user: Path) -> list[str]:
    """An option that the command has, or a flag."""
    option = generator.choice((*_options(line[0] if line else ""), "--plugin"))
    if option == "--plugin":
        return [option, _value(generator, option, user), *line]
    return [*line, option] if option in FLAGS else [*line, option, _value(generator, option, user)]


def _drop(generator: random.Random, line: list[str], user: Path) -> list[str]:
    place = generator.randrange(len(line))
    return line[:place] + line[place + 1 :] or ["--version"]


def _repeat(generator: random.Random, line: list[str], user: Path) -> list[str]:
    place = generator.randrange(len(line))
    return [*line, *line[place : place + 2]]


def _value(generator: random.Random, option: str, user: Path) -> str:
    """A value for an option, mostly of the kind that it takes."""
    paths = [*sorted(map(str, user.iterdir())), str(user / "nothing"), str(user / ("x" * 300)), "/dev/zero", ".", "/"]
    if option in COUNTED and generator.random() < 0.8:
        return generator.choice(COUNTS)
    if option in OTHERS and generator.random() < 0.8:
        return generator.choice(OTHERS[option]).replace("PATH", generator.choice(paths))
    return generator.choice(paths if generator.random() < 0.6 else TEXTS)


@cache
def _options(command: str) -> tuple[str, ...]:
    helped = run_command([command, "--help"]) if command in {each[0] for each in bases(Path(), Path())} else None
    found = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", helped.out)) if helped is not None else set()
    return tuple(sorted(found - {"--help"})) or ("--json",)


def run_command(arguments: list[str]) -> Run:
    """Run the command as the shell would, in this process."""
    before = sys.argv, list(sys.path), Path.cwd()
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["oodles", *arguments]
    try:
        with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
            cli.main()
    except SystemExit as ended:
        return Run(ended.code or 0, out.getvalue(), err.getvalue())
    finally:
        sys.argv, sys.path[:] = before[:2]
        os.chdir(before[2])
    raise AssertionError("the command did not end as commands do")


def judge(arguments: list[str]) -> str:
    """Run a command line and name the outcome; what is bad is described on standard error."""
    done = run_command(arguments)
    lines = done.err.splitlines()
    errors = [line for line in lines if line.startswith(("error ", "internal error "))]
    odd = [line for line in (*done.out.split("\n"), *done.err.split("\n")) if not line.isprintable()]
    problem = ""
    if done.code not in (0, 2):
        problem = f"exit code {done.code}"
    elif done.code == 2 and not (errors == lines[-1:] or done.out.lstrip().startswith("Usage")):
        problem = "not one line"
    elif odd:
        problem = f"control characters in {odd[0]!r}"
    elif done.code == 0 and not _is_sound(arguments, done.out):
        return NON_FINITE
    if problem:
        print(f"{problem}: {arguments}\n{done.err[-2000:]}", file=sys.__stderr__)
        return TRACEBACK
    return REFUSED if done.code else ACCEPTED


def _is_sound(arguments: list[str], out: str) -> bool:
    """Whether no verdict that was printed accepts an input whose score is not finite."""
    if "score" not in arguments or "--help" in arguments:
        return True
    if "--json" in arguments:
        return all(each["score"] is not None or not each["is_id"] for each in json.loads(out)["verdicts"])
    if "--csv" in arguments:
        return not re.search(r",,true$", out, re.MULTILINE)
    return not re.search(r"^ID +-?(nan|inf)", out, re.MULTILINE)


def command_line(generator: random.Random, place: Path) -> str:
    return judge(hostile(generator, place))


CASES = {"": command_line}
