"""Change the mathematics in small ways and see whether its tests notice: docs/mutation.md.

Each mutant is one change of one expression. It is tested in a process forked from one that has collected the tests,
so that nothing is imported again. Results are kept in docs/mutation.json, and modules that have not changed, and whose
tests have not, are not tested again. Mutants that survive are to be explained in ``studies/equivalent_mutants.toml``.
"""

import ast
import copy
import gc
import hashlib
import json
import os
import signal
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from itertools import islice
from tempfile import TemporaryFile
from types import FunctionType
from typing import Any

import pytest
from hypothesis import Phase, settings

from studies import ROOT
from studies.pages import write_page

SOURCE = ROOT / "src" / "oodles"
EXPLAINED = ROOT / "studies" / "equivalent_mutants.toml"
RESULTS = ROOT / "docs" / "mutation.json"
FUNCTIONS = [path for path in sorted((SOURCE / "functional").glob("*.py")) if path.stem != "__init__"]
PAIRS: tuple[tuple[type[ast.AST], type[ast.AST]], ...] = (
    *((ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn), (ast.And, ast.Or), (ast.Add, ast.Sub)),
    *((ast.Mult, ast.Div), (ast.LShift, ast.RShift), (ast.BitAnd, ast.BitOr)),
)
# every module is tested by its own file, and by the examples in its docstrings
TESTS = {
    **{f"functional/{path.stem}.py": f"tests/functional/test_{path.stem}.py" for path in FUNCTIONS},
    "metrics.py": "tests/test_metrics.py",
    "calibration.py": "tests/test_calibration.py",
}
SECONDS = 300
"""A mutant whose tests take longer hangs, and is noticed."""
Key = tuple[str, str, str, int]
"""Module, function, change as text, and which of equal changes in the function it is."""
OTHER_OPERATORS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    **{one: (other,) for pair in PAIRS for one, other in (pair, pair[::-1])},
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.FloorDiv: (ast.Mult,),
    ast.Pow: (ast.Mult,),
    ast.BitXor: (ast.BitAnd,),
}


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


def mutants(module: str, source: str | None = None) -> Iterator[tuple[Key, ast.Module]]:
    """Yield every mutant of a module in the order of its lines: what identifies it, and the tree, changed meanwhile."""
    tree, seen = ast.parse(source or (SOURCE / module).read_text()), Counter[tuple[str, str]]()
    for parent, name, place, function in sites(tree, "module"):
        held = getattr(parent, name)
        node = held if place is None else held[place]
        shown = isinstance(node, ast.Constant) and isinstance(parent, ast.expr | ast.keyword | ast.arguments)
        before = _text(parent if shown else node)
        for other in replacements(node):
            _put(parent, name, place, ast.copy_location(other, node))
            change = f"{before} → {_text(parent if shown else other)}"
            seen[function, change] += 1
            yield (module, function, change, seen[function, change]), tree
            _put(parent, name, place, node)


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


def apply(module: str, tree: ast.Module) -> None:
    """Change the imported module in place: code that has one of its functions or classes has the mutated one."""
    loaded = import_module("oodles." + module.removesuffix(".py").replace("/", "."))
    before = dict(vars(loaded))
    exec(compile(ast.fix_missing_locations(tree), str(loaded.__file__), "exec"), vars(loaded))  # noqa: S102
    for name, old in before.items():
        new = vars(loaded).get(name)
        if getattr(old, "__module__", None) != loaded.__name__ or new is old:
            continue
        if isinstance(old, FunctionType) and isinstance(new, FunctionType):
            old.__code__, old.__defaults__, old.__kwdefaults__ = new.__code__, new.__defaults__, new.__kwdefaults__
        elif isinstance(old, type) and isinstance(new, type):
            _become(old, new)
        else:
            continue
        setattr(loaded, name, old)


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

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Replace pytest's own loop; save the results after each module."""
        for module in changed(self.results):
            items = [item for item in session.items if item.path in (ROOT / TESTS[module], SOURCE / module)]
            seconds = durations(items)
            if len(seconds) < len(items) or not items:
                raise pytest.UsageError(f"the tests of {module} fail without any mutant")
            # the fastest first: most mutants are noticed at once
            items = [item for _, _, item in sorted(zip(seconds, range(len(items)), items, strict=True))]
            gc.collect()
            gc.freeze()  # a forked process would copy what it collects
            keys = [key for key, _ in mutants(module)]
            alive = [list(keys[number][1:]) for number in survivors(module, len(keys), items)]
            self.results[module] = {"digest": digest(module), "mutants": len(keys), "alive": alive}
            RESULTS.write_text(json.dumps(self.results, indent=1, ensure_ascii=False) + "\n")
        return True


def run(items: list[pytest.Item]) -> list[float]:
    """Run tests until one fails; return the seconds of those that passed. A test can run once in a process."""
    seconds = []
    for item, following in zip(items, [*items[1:], None], strict=True):
        began = time.monotonic()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if item.session.testsfailed:
            break
        seconds.append(time.monotonic() - began)
    return seconds


def durations(items: list[pytest.Item]) -> list[float]:
    """Return how many seconds each test takes without any mutant, up to one that fails."""
    with TemporaryFile() as shared:
        child = fork(lambda: os.write(shared.fileno(), json.dumps(run(items)).encode()) > 0)
        os.waitpid(child, 0)
        shared.seek(0)
        found: list[float] = json.loads(shared.read() or "[]")
    return found


def survivors(module: str, count: int, items: list[pytest.Item]) -> list[int]:
    """Return the numbers of the mutants of a module that its tests do not notice, tried on every core at once."""
    waiting, running, alive = iter(range(count)), dict[int, int](), []
    for number in waiting:
        running[fork(partial(passes, module, number, items))] = number
        while running and (len(running) >= len(os.sched_getaffinity(0)) or number == count - 1):
            child, status = os.wait()
            done = running.pop(child)
            if status == 0:
                alive.append(done)
            print(f"\r{module} {done + 1}/{count}, {len(alive)} alive", end="", flush=True)
    print()
    return sorted(alive)


def passes(module: str, number: int, items: list[pytest.Item]) -> bool:
    """Return whether the tests pass with a mutant; changes this process for good."""
    _, tree = next(islice(mutants(module), number, None))
    apply(module, tree)
    return len(run(items)) == len(items)


def fork(action: Callable[[], bool]) -> int:
    """Start a process that runs the action silently and ends with 0 if it is true; it is killed if it hangs."""
    child = os.fork()
    if child:
        return child
    try:
        signal.alarm(SECONDS)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        os._exit(not action())
    except BaseException:
        os._exit(1)


def explained() -> dict[Key, str]:
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
    options = ["-q", "-s", "--tb=no", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
    if paths and pytest.main([*options, *paths], [Mutation(results)]):
        sys.exit("pytest could not run the tests")


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
