"""``oodles demo``."""

from pathlib import Path
from typing import Annotated

from typer import Option

from oodles.cli.checks import check_out
from oodles.cli.common import console


def demo(
    out: Annotated[Path, Option(help="Folder for the rows (JSON) and the histograms (PNG).")] = Path("oodles-demo"),
) -> None:
    """Real results in seconds: every detector on features of real images that come with the package.

    Nothing is downloaded. The features are those of a CIFAR-10 network for CIFAR-10, SVHN, Textures and
    Places images; the table shows which detector separates them best.
    """
    check_out(out)

    from oodles.report.demo import run_demo

    run_demo(out, console)
