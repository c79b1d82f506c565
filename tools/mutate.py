"""Change the mathematics in small ways and see whether its tests notice: ``make mutants`` writes docs/mutation.md.

Each mutant is one change of one expression. It is tested in a process forked from one that has imported PyTorch, so that
only the package itself is imported anew. Results are kept in docs/mutation.json, and modules that have not changed, and whose
tests have not, are not tested again. Mutants that survive are to be explained in ``tools/equivalent_mutants.toml``.
"""

import ast
import copy
import gc
import hashlib
import importlib.abc
import importlib.util
import json
import os
import signal
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from pages import write_page

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "oodles"
EXPLAINED = ROOT / "tools" / "equivalent_mutants.toml"
RESULTS = ROOT / "docs" / "mutation.json"
# every module is tested by its own file, and by the examples in its docstrings
TESTS = {
    **{f"functional/{name}.py": f"tests/functional/test_{name}.py" for name in ("maps", "normal", "quantiles")},
    **{f"functional/{name}.py": f"tests/functional/test_{name}.py" for name in ("scores", "shaping", "sparsity")},
    "metrics.py": "tests/test_metrics.py",
    "calibration.py": "tests/test_calibration.py",
}
USAGE_ERROR, NO_TESTS = 4, 5  # exit codes of pytest
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
    """One change: ``change`` as text, and the whole module with it; ``nth`` counts equal changes in one function."""

    module: str
    function: str
    change: str
    line: int
    tree: ast.Module
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
                    changed = copy.deepcopy(node)
                    changed.ops[place] = other()
                    yield changed
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator) | ast.BoolOp(op=operator):
            for other in OTHER_OPERATORS.get(type(operator), ()):
                changed = copy.deepcopy(node)
                changed.op = other()
                yield changed
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
            changed = copy.copy(node)
            changed.test = ast.UnaryOp(ast.Not(), node.test)
            yield changed


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
            changed = ast.fix_missing_locations(copy.deepcopy(tree))
            change = f"{before} → {_text(parent if shown else other)}"
            _put(parent, name, place, node)
            found = Mutant(module, function, change, node.lineno, changed)
            seen[function, found.change] += 1
            yield replace(found, nth=seen[function, found.change])


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


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives a mutated module to whoever imports it."""

    def __init__(self, mutant: Mutant) -> None:
        self.name = "oodles." + mutant.module.removesuffix(".py").replace("/", ".")
        self.path = SOURCE / mutant.module
        self.tree = mutant.tree

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Only for the one module."""
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def exec_module(self, module: ModuleType) -> None:
        """Run the mutated code."""
        exec(compile(self.tree, str(self.path), "exec"), module.__dict__)  # noqa: S102


def passes(module: str, mutant: Mutant | None, limit: float) -> bool | None:
    """Whether the tests of a module pass with a mutant; None if they did not end in time."""
    child = os.fork()
    if not child:
        os._exit(_test(module, mutant))
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            if code in (USAGE_ERROR, NO_TESTS):
                sys.exit(f"pytest could not run the tests of {module}")
            return code == 0
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _test(module: str, mutant: Mutant | None) -> int:
    """Run the tests in this process, silently; returns pytest's exit code."""
    import pytest

    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    if mutant is not None:
        sys.meta_path.insert(0, Mutated(mutant))
    options = ("-x", "-q", "--tb=no", "-p", "no:cacheprovider", "--rootdir", str(ROOT))
    return int(pytest.main([*options, str(ROOT / TESTS[module]), str(SOURCE / module)]))


def explained() -> dict[tuple[str, str, str, int], str]:
    """Why some mutants cannot be noticed, by their keys."""
    entries = tomllib.loads(EXPLAINED.read_text())["mutant"] if EXPLAINED.exists() else []
    return {(e["module"], e["function"], e["change"], e.get("nth", 1)): e["why"] for e in entries}


def survivors(module: str, found: list[Mutant]) -> list[Mutant]:
    """The mutants of a module that its tests do not notice."""
    start = time.monotonic()
    if not passes(module, None, 600):
        sys.exit(f"the tests of {module} fail without any mutant")
    limit = 20 + 10 * (time.monotonic() - start)
    alive = []
    for number, mutant in enumerate(found, 1):
        if passes(module, mutant, limit):
            alive.append(mutant)
            print(f"\r{module}:{mutant.line} {mutant.function}: {mutant.change} ({mutant.nth})", flush=True)
        print(f"\r{module} {number}/{len(found)}", end="", flush=True)
    print()
    return alive


def digest(module: str) -> str:
    """Changes with the module and its tests."""
    return hashlib.sha256((SOURCE / module).read_bytes() + (ROOT / TESTS[module]).read_bytes()).hexdigest()[:16]


def update(results: dict[str, Any]) -> None:
    """Test the mutants of every module that has changed, or whose tests have; saved after each module."""
    changed = [module for module in TESTS if results.get(module, {}).get("digest") != digest(module)]
    if changed:
        import_others(changed)
    for module in changed:
        found = list(mutants(module, (SOURCE / module).read_text()))
        alive = [mutant.key[1:] for mutant in survivors(module, found)]
        results[module] = {"digest": digest(module), "mutants": len(found), "alive": alive}
        RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


def import_others(modules: list[str]) -> None:
    """Import what the tests import of other packages, so that forked processes need not; ours is forgotten again."""
    import pytest
    from hypothesis import Phase, settings

    settings.register_profile("mutants", derandomize=True, phases=[Phase.explicit, Phase.generate])  # no shrinking
    os.environ["HYPOTHESIS_PROFILE"] = "mutants"
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # of packages that these tests do not use
    pytest.main(
        ["--collect-only", "-qqq", "-p", "no:cacheprovider", *(str(ROOT / TESTS[module]) for module in modules)]
    )
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(ROOT) and name != "__main__":
            del sys.modules[name]
    gc.collect()
    gc.freeze()  # pytest collects garbage at its end, which takes long if it has to look at all of PyTorch


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
        notes += [f"| `{module}` | `{key[1]}` | `{_cell(key[2])}` | {reasons.pop(key)} |" for key in known]
    write_page("mutation", rows="\n".join(rows), explained="\n".join(notes))
    if reasons:
        sys.exit(f"explained in {EXPLAINED.name}, but noticed by a test or gone: {list(reasons)}")
    if unexplained:
        sys.exit(f"{unexplained} mutants survive and are not explained: see {RESULTS}")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main()
