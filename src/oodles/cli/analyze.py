"""``oodles analyze``."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from oodles.cli.checks import check_store
from oodles.cli.common import notice, say


def analyze(
    features: Annotated[Path, Argument(help="Folder with the feature stores of train, test and OOD sets, from bench.")],
    out: Annotated[Path, Option(help="Folder for the figures (PNG, SVG) and their data (CSV).", file_okay=False)],
    label: Annotated[int, Option("--class", help="The class whose units are analysed, counted from 0.")] = 0,
    p: Annotated[float, Option(help="Sparsity.")] = 0.9,
    ood: Annotated[str | None, Option(help="The OOD set in the figures. Default: the first.")] = None,
) -> None:
    """Draw the paper's figures from your own features, and measure what its theory predicts.

    Figures 1, 2, 3, 4 and the covariance figure, each as PNG, SVG and CSV, and the variance of every class's output
    with and without DICE on every set.

    Example: oodles analyze oodles-store/cifar10/densenet101-cifar10 --ood svhn --out figures
    """
    for part in ("train", "test"):
        check_store(features / part)

    from oodles.bench.sets import load_sets
    from oodles.paper.figures import draw_figures, variance_summary

    parts = load_sets(features)
    written = draw_figures(parts, out, label=label, p=p, shown=ood)
    say(f"Variance of a class's output with DICE (p={p:g}), relative to that with all weights:")
    for name, low, mean, high, above in variance_summary(parts, p):
        say(f"  {name:14} from {low:.2f} to {high:.2f}, mean {mean:.2f}; above 1 in {above} classes")
    notice(f"{len(written)} files in {out}")
