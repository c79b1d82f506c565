"""Write ``docs/openood.md``: every detector by OpenOOD's protocol on the two CIFAR networks.

``--limit`` takes only so many images of each set. Every number on the page comes from this
run, except those of OpenOOD's leaderboard.
"""

from pathlib import Path
from statistics import fmean
from typing import Any

from oodles.bench.openood import AUPR, LEADERBOARD, compare_groups, leaderboard
from oodles.bench.run import Tables, run_tables
from oodles.bench.sets import load_sets
from oodles.bench.suites import OPENOOD, Suite
from oodles.bench.tables import markdown
from oodles.detectors import detector_list
from oodles.metrics import Row
from studies import DATA, STORE
from studies.pages import fill, markdown_table, write_page
from studies.sources import authors_network, authors_run

ID_SETS = ("cifar10", "cifar100")
METHODS = {"ash_b+energy": "ash_b", "adascale": "adascale (AdaSCALE-A)"}


def main(data: Path = DATA, store: Path = STORE, limit: int | None = None) -> None:
    """Measure both networks and write the page."""
    parts = [part(OPENOOD[f"openood-{name}"], data, store, limit) for name in ID_SETS]
    write_page("openood", suites=sets_of_suites(), networks="\n".join(parts).rstrip(), leaderboard=leaderboard_table())


def part(suite: Suite, data: Path, store: Path, limit: int | None) -> str:
    """The section of one network."""
    run, network = authors_run(suite), authors_network(suite, data)
    folder = store / suite.name / (run if limit is None else f"{run}-{limit}")
    sets = {name: images.sample(limit) for name, images in suite.open_sets(data).items()}
    options: dict[str, Any] = {"model": network, "preprocessing": suite.transform, "store": folder, "tell": print}
    result = run_tables(["main"], sets, main=detector_list(), p=suite.p, id_set=suite.name, run=run, **options)
    rows = result.rows["main"]
    return fill(
        "openood-network",
        suite=suite.name,
        run=run,
        limit="" if limit is None else f" --limit {limit}",
        accuracy=f"{result.accuracy[run]:.2%}",
        sizes=", ".join(f"{name} {len(each):,}" for name, each in load_sets(folder).items() if name in sets),
        missing=", ".join(suite.missing(data)),
        table=markdown(compare_groups(rows, suite.groups, published=suite.name)).rstrip(),
        aupr=markdown(compare_groups(rows, suite.groups, AUPR)).rstrip(),
        verdict=verdict(result, suite),
    )


def verdict(result: Tables, suite: Suite) -> str:
    """The best detectors of each group by AUROC, and how much the two conventions of FPR95 differ."""
    rows = result.rows["main"]
    sentences = []
    for group, names in suite.groups.items():
        inside = [row for row in rows if row.ood_set in names]
        auroc = {spec: mean(inside, spec, "auroc") for spec in dict.fromkeys(row.detector for row in inside)}
        first = sorted(auroc, key=lambda spec: -auroc[spec])[:3]
        listed = ", ".join(f"{spec.removesuffix('+energy')} ({auroc[spec]:.1f})" for spec in first)
        sentences.append(f"The highest AUROC for {group} OOD: {listed}.")
    far = [row for row in rows if row.ood_set in suite.groups["far"]]
    theirs, papers = mean(far, "energy", "fpr95_ood"), mean(far, "energy", "fpr95")
    sentences.append(
        f"With the paper's FPR95 (OOD accepted when 95 % of ID is accepted), energy on far OOD would have {papers:.1f} "
        f"instead of {theirs:.1f}: numbers of the two conventions cannot be compared."
    )
    return " ".join(sentences)


def mean(rows: list[Row], spec: str, column: str) -> float:
    """The mean of a column over the sets, in percent."""
    return 100 * fmean(getattr(row, column) for row in rows if row.detector == spec)


def sets_of_suites() -> str:
    """A table of the suites and their sets."""
    rows = [[f"`{name}`", *map(", ".join, suite.groups.values())] for name, suite in OPENOOD.items()]
    return markdown_table(["suite", "near OOD", "far OOD"], rows)


def leaderboard_table() -> str:
    """The leaderboard's AUROC, near / far."""
    suites = ("openood-cifar10", "openood-cifar100", "openood-imagenet")
    rows = []
    for method in LEADERBOARD:
        pairs = [leaderboard(suite, method) for suite in suites]
        cells = [f"{pair['near']:.2f} / {pair['far']:.2f}" for pair in pairs]
        rows.append([METHODS.get(method, method.removesuffix("+energy")), *cells])
    return markdown_table(["", *suites], rows)
