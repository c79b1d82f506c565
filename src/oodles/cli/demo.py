"""``oodles demo``."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from typer import Option

from oodles.cli.common import console


def demo(
    out: Annotated[
        Path, Option(help="Folder for the report, the rows (JSON) and the histograms (PNG).", file_okay=False)
    ] = Path("oodles-demo"),
) -> None:
    """Real results in seconds: every detector on features of real images that come with the package.

    Nothing is downloaded. The features are those of a CIFAR-10 network for CIFAR-10, SVHN, Textures and
    Places images; the table shows which detector separates them best.
    """
    from oodles.bench.comparison import overview, results, sweep_table
    from oodles.bench.demo import DEFAULT, DICE, ENERGY, ID_SET, draw_scores, load_pack, run_demo
    from oodles.bench.run import WRITTEN
    from oodles.bench.tables import print_table, rows_json
    from oodles.calibration import calibrate
    from oodles.detectors import parse
    from oodles.models import read_card
    from oodles.paper.published import AVERAGE
    from oodles.plots import save_figure
    from oodles.records.files import write_bytes
    from oodles.report import guard_part, rows_parts, write_report
    from oodles.report.document import Section

    train, test, ood, card = load_pack()
    console.print(
        f"CIFAR-10 is in-distribution ({len(train):,} training rows to fit on, {len(test):,} test rows); "
        + ", ".join(f"{name} ({len(features):,})" for name, features in ood.items())
        + " are not.\n"
    )
    start = time.perf_counter()
    rows, ablated, points = run_demo(train, test, ood)
    elapsed = time.perf_counter() - start
    print_table(console, overview(rows))
    shown = {row.detector for row in rows}
    count = len(shown | {row.detector for row in ablated}) + len(points)
    scored = len(test) + sum(len(features) for features in ood.values())
    console.print(f"\nFitting and evaluating {count} detectors on {scored:,} rows took {elapsed:.2f} s.")
    grouped = results(rows)
    energy, dice, default = (grouped[spec, AVERAGE].mean("fpr95") for spec in (ENERGY, DICE, DEFAULT))
    console.print(
        f"On average DICE accepts {dice:.1f} % of the OOD images, energy {energy:.1f} %, and the default detector "
        f"{default:.1f} %.\n"
    )
    once = [*rows, *(row for row in ablated if row.detector not in shown)]
    write_bytes(out / "rows.json", rows_json(once).encode(), WRITTEN)
    save_figure(draw_scores(train, test, ood, rows), out / "scores.png")
    console.print(f"rows: {out / 'rows.json'}   histograms: {out / 'scores.png'}", markup=False, soft_wrap=True)
    note = (
        "What differs from the paper: the sets are subsets, and the last layer is not the one that was trained with "
        f"the paper's network but our own, fitted on {card['chosen from']['train']:,} of its training embeddings."
    )
    parts = rows_parts(rows, notes=[note])
    for spec in (DEFAULT, DICE):
        detector = parse(spec).fit(train)
        threshold, names = calibrate(detector.score(test)), read_card("cifar10-small")["classes"]
        parts.append(guard_part(detector, threshold, test, ood=ood, train=train, class_names=names, id_set=ID_SET))
    (ablation,) = rows_parts(ablated, "Which weights of the last layer to keep, p = 0.9")
    swept = Section("How much to drop", tables=(sweep_table(points),))
    parts.append(replace(ablation, sections=(*ablation.sections, swept)))
    write_report(out / "report.html", *parts, title="oodles demo: CIFAR-10 against four OOD sets")
    console.print(f"report: {out / 'report.html'}", markup=False, soft_wrap=True)
