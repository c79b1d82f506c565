"""``python -m studies NAME [OPTIONS]`` runs a study; without a name, list them."""

import ast
import sys
from importlib import import_module
from pathlib import Path

import typer


def run(name: str = "", *arguments: str) -> None:
    """Run the study with this name, or list all of them."""
    known = summaries()
    if name in known:
        app = typer.Typer(add_completion=False)
        app.command()(import_module(f"studies.{name}").main)
        app(arguments, prog_name=f"python -m studies {name}")
    listed = "\n".join(f"{each:20} {summary}" for each, summary in known.items())
    if not name:
        print(listed)
    else:
        sys.exit(f"there is no study {name!r}; choose one of:\n{listed}")


def summaries() -> dict[str, str]:
    """Return the first line of every study by its name, without importing them."""
    found = {}
    folder = Path(__file__).parent
    for path in sorted([*folder.glob("[!_]*.py"), *folder.glob("*/__init__.py")]):
        tree = ast.parse(path.read_text())
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            name = path.parent.name if path.stem == "__init__" else path.stem
            found[name] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return dict(sorted(found.items()))


if __name__ == "__main__":
    run(*sys.argv[1:])
