"""Change the mathematics in small ways and see whether its tests notice: docs/mutation.md.

Each mutant is one change of one expression. It is tested in a process forked from one that has collected the tests,
so that nothing is imported again. Results are kept in docs/mutation.json, and modules that have not changed, and whose
tests have not, are not tested again. Mutants that survive are to be explained in ``studies/equivalent_mutants.toml``.
"""

import ast
import copy
import gc
import hashlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import pytest
from hypothesis import Phase, settings

from studies import ROOT
from studies.pages import write_page

SOURCE = ROOT / "src" / "oodles"
EXPLAINED = ROOT / "studies" / "equivalent_mutants.toml"
RESULTS = ROOT / "docs" / "mutation.json"
# every module is tested by its own file, and by the examples in its docstrings
TESTS = {
    **{f"functional/{name}.py": f"tests/functional/test_{name}.py" for name in ("maps", "normal", "quantiles")},
    **{f"functional/{name}.py": f"tests/functional/test_{name}.py" for name in ("scores", "shaping", "sparsity")},
    "metrics.py": "tests/test_metrics.py",
    "calibration.py": "tests/test_calibration.py",
}
OTHER_OPERATORS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Pow: (ast.Mult,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitAnd,),
}


@dataclass(frozen=True)
class Mutant:
    """One change: ``change`` as text, ``other`` in its place in the module; ``nth`` counts equal ones in a function."""

    module: str
    function: str
    change: str
    line: int
    tree: ast.Module
    place: tuple[ast.AST, str, int | None]
    other: ast.AST
    nth: int = 1

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What identifies it as long as its function stays as it is."""
        return self.module, self.function, self.change, self.nth


def replacements(node: ast.AST) -> Iterator[ast.AST]:
    """The expressions or statements that a node may be replaced by."""
    match node:
        case ast.Compare(ops=ops):
            for place, operator in enumerate(ops):
                for other in OTHER_OPERATORS[type(operator)]:
                    yield _changed(node, ops=[*ops[:place], other(), *ops[place + 1 :]])
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator) | ast.BoolOp(op=operator):
            for other in OTHER_OPERATORS.get(type(operator), ()):
                yield _changed(node, op=other())
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
            if isinstance(value, float) and value:
                yield ast.Constant(value / 2)
        case ast.Return(value=ast.expr()):
            yield ast.Return(ast.Constant(None))
        case ast.If(test=ast.Name() | ast.Call() | ast.Attribute()) | ast.IfExp(test=ast.Name() | ast.Call()):
            yield _changed(node, test=ast.UnaryOp(ast.Not(), node.test))


def _changed(node: ast.AST, **fields: object) -> ast.AST:
    """Return a copy of the node with other fields."""
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def mutants(module: str, source: str) -> Iterator[Mutant]:
    """Every mutant of a module's source, in the order of its lines."""
    tree, seen = ast.parse(source), Counter[tuple[str, str]]()
    for parent, name, place, function in sites(tree, "module"):
        held = getattr(parent, name)
        node = held if place is None else held[place]
        shown = isinstance(node, ast.Constant) and isinstance(parent, ast.expr | ast.keyword | ast.arguments)
        before = _text(parent if shown else node)
        for other in replacements(node):
            ast.copy_location(other, node)
            _put(parent, name, place, other)
            change = f"{before} → {_text(parent if shown else other)}"
            _put(parent, name, place, node)
            seen[function, change] += 1
            nth = seen[function, change]
            yield Mutant(module, function, change, node.lineno, tree, (parent, name, place), other, nth)


def sites(node: ast.AST, function: str) -> Iterator[tuple[ast.AST, str, int | None, str]]:
    """Where a mutant may be made, with the name of the function: not in annotations, texts and imports for types."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for place, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr) or _is_for_types(child):
                continue
            inner = function
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = child.name if function == "module" else f"{function}.{child.name}"
            if isinstance(child, ast.expr | ast.stmt):
                yield node, name, place, inner
            yield from sites(child, inner)


def _is_for_types(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    marks = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return any(isinstance(mark, ast.Name) and mark.id == "overload" for mark in marks)


def _put(parent: ast.AST, name: str, place: int | None, node: ast.AST) -> None:
    if place is None:
        setattr(parent, name, node)
    else:
        getattr(parent, name)[place] = node


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.If):
        return f"if {ast.unparse(node.test)}"
    return " ".join(ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).split())


def apply(mutant: Mutant) -> None:
    """Change the imported module in place: whoever has one of its functions or classes has the mutated one.

    Once in a process, whose copy of the tree stays changed.
    """
    module = importlib.import_module("oodles." + mutant.module.removesuffix(".py").replace("/", "."))
    before = dict(vars(module))
    _put(*mutant.place, mutant.other)
    tree = ast.fix_missing_locations(mutant.tree)
    exec(compile(tree, str(module.__file__), "exec"), vars(module))  # noqa: S102
    for name, old in before.items():
        new = vars(module).get(name)
        if getattr(old, "__module__", None) != module.__name__ or new is old:
            continue
        if isinstance(old, FunctionType) and isinstance(new, FunctionType):
            old.__code__, old.__defaults__, old.__kwdefaults__ = new.__code__, new.__defaults__, new.__kwdefaults__
        elif isinstance(old, type) and isinstance(new, type):
            _become(old, new)
        else:
            continue
        setattr(module, name, old)


def _become(old: type, new: type) -> None:
    """Give a class the attributes of another."""
    own = ("__dict__", "__weakref__", "__module__", "__doc__")
    for name in vars(old).keys() - vars(new).keys() - set(own):
        delattr(old, name)
    for name in vars(new).keys() - set(own):
        setattr(old, name, vars(new)[name])


class Mutation:
    """A plugin of pytest that runs the collected tests of each module once per mutant, in a forked process."""

    def __init__(self, results: dict[str, Any]) -> None:
        self.results = results
        self.error = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In place of pytest's own loop; saves the results after each module."""
        gc.collect()
        gc.freeze()  # a forked process would copy what it collects
        try:
            for module in changed(self.results):
                paths = (ROOT / TESTS[module], SOURCE / module)
                items = [item for item in session.items if item.path in paths]
                found = list(mutants(module, (SOURCE / module).read_text()))
                alive = [mutant.key[1:] for mutant in survivors(module, found, items)]
                self.results[module] = {"digest": digest(module), "mutants": len(found), "alive": alive}
                RESULTS.write_text(json.dumps(self.results, indent=1, ensure_ascii=False) + "\n")
        except BrokenTestsError as error:
            self.error = str(error)
        return True


class BrokenTestsError(Exception):
    """The tests fail without any mutant."""


def survivors(module: str, found: list[Mutant], items: list[pytest.Item]) -> list[Mutant]:
    """The mutants of a module that its tests do not notice, tried on every core at once."""
    seconds = durations(module, items)
    # the fastest first: most mutants are noticed at once
    items = [item for _, _, item in sorted(zip(seconds, range(len(items)), items, strict=True))]
    limit = 20 + 10 * sum(seconds)
    waiting, running, alive = list(enumerate(found))[::-1], dict[int, tuple[int, float]](), []
    while waiting or running:
        while waiting and len(running) < len(os.sched_getaffinity(0)):
            number, mutant = waiting.pop()
            running[start(items, mutant)] = number, time.monotonic() + limit
        for child, (number, end) in list(running.items()):
            done, status = os.waitpid(child, os.WNOHANG)
            if not done and time.monotonic() < end:
                continue
            if not done:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            del running[child]
            if done and os.waitstatus_to_exitcode(status) == 0:
                alive.append(number)
                mutant = found[number]
                print(f"\r{module}:{mutant.line} {mutant.function}: {mutant.change} ({mutant.nth})", flush=True)
            print(f"\r{module} {len(found) - len(waiting) - len(running)}/{len(found)}", end="", flush=True)
        time.sleep(0.02)
    print()
    return [found[number] for number in sorted(alive)]


def durations(module: str, items: list[pytest.Item]) -> list[float]:
    """How many seconds each test takes, without any mutant."""
    with tempfile.TemporaryFile() as shared:
        child = start(items, None, shared.fileno())
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or not items:
            raise BrokenTestsError(f"the tests of {module} fail without any mutant")
        shared.seek(0)
        return [float(line) for line in shared]


def start(items: list[pytest.Item], mutant: Mutant | None, timings: int = -1) -> int:
    """Fork a process that runs the tests silently until one fails; with ``timings`` it writes their seconds there."""
    child = os.fork()
    if child:
        return child
    try:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        if mutant is not None:
            apply(mutant)
        for item, following in zip(items, [*items[1:], None], strict=True):
            began = time.monotonic()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if item.session.testsfailed:
                os._exit(1)
            if timings >= 0:
                os.write(timings, f"{time.monotonic() - began}\n".encode())
    except BaseException:
        os._exit(1)
    os._exit(0)


def explained() -> dict[tuple[str, str, str, int], str]:
    """Why some mutants cannot be noticed, by their keys."""
    entries = tomllib.loads(EXPLAINED.read_text())["mutant"] if EXPLAINED.exists() else []
    return {(e["module"], e["function"], e["change"], e.get("nth", 1)): e["why"] for e in entries}


def digest(module: str) -> str:
    """Changes with the module and its tests."""
    return hashlib.sha256((SOURCE / module).read_bytes() + (ROOT / TESTS[module]).read_bytes()).hexdigest()[:16]


def changed(results: dict[str, Any]) -> list[str]:
    """The modules that have changed since they were tested, or whose tests have."""
    return [module for module in TESTS if results.get(module, {}).get("digest") != digest(module)]


def update(results: dict[str, Any]) -> None:
    """Test the mutants of every module that has changed, or whose tests have."""
    settings.register_profile("mutants", derandomize=True, phases=[Phase.explicit, Phase.generate])  # no shrinking
    os.environ["HYPOTHESIS_PROFILE"] = "mutants"
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # of packages that these tests do not use
    paths = [str(path) for module in changed(results) for path in (ROOT / TESTS[module], SOURCE / module)]
    if paths:
        mutation = Mutation(results)
        code = pytest.main(
            ["-q", "-s", "--tb=no", "-p", "no:cacheprovider", "--rootdir", str(ROOT), *paths], [mutation]
        )
        if code or mutation.error:
            sys.exit(mutation.error or "pytest could not collect the tests")


def main() -> None:
    """Test mutants, write the page, and fail if one survives that is not explained."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    update(results)
    reasons, rows, notes, unexplained = explained(), [], [], 0
    for module in TESTS:
        alive = [(module, *key) for key in results[module]["alive"]]
        known = [key for key in alive if key in reasons]
        unexplained += len(alive) - len(known)
        total = results[module]["mutants"]
        rows.append(f"| `{module}` | {total} | {total - len(alive)} | {len(known)} | {len(alive) - len(known)} |")
        if known:
            listed = [f"- `{key[1]}`: `{key[2]}`: {reasons.pop(key)}" for key in known]
            notes.append(f"**`{module}`**\n\n" + "\n".join(listed))
    write_page("mutation", rows="\n".join(rows), explained="\n\n".join(notes))
    if reasons:
        sys.exit(f"explained in {EXPLAINED.name}, but noticed by a test or gone: {list(reasons)}")
    if unexplained:
        sys.exit(f"{unexplained} mutants survive and are not explained: see {RESULTS}")
