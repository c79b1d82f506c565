"""``Rows``: what a benchmark returns, a list that shows itself as a table and becomes a DataFrame."""

import io
from typing import TYPE_CHECKING

from rich.console import Console

from oodles.bench.comparison import overview
from oodles.bench.tables import html, print_table, records
from oodles.extras import needed_by
from oodles.metrics import Row

if TYPE_CHECKING:
    import pandas as pd

WIDTH = 120  # characters of a line of the printed table


class Rows(list[Row]):
    """A list of rows, which prints as a table, in notebooks as an HTML table.

    >>> from oodles.metrics import evaluate
    >>> Rows([evaluate([2.0, 3.0], [0.0, 2.5], detector="msp", ood_set="noise")])
          average noise
    ───────────────────
    msp 50.0/75.0  50.0
    average: FPR95 / AUROC; each set: FPR95. In percent, lower FPR95 and higher AUROC are better
    """

    def __repr__(self) -> str:
        if not self:
            return "Rows([])"
        text = io.StringIO()
        print_table(Console(file=text, width=WIDTH, color_system=None, safe_box=True), overview(self))
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())

    def _repr_html_(self) -> str:
        return html(overview(self)) if self else "<p>no rows</p>"

    def to_dataframe(self) -> "pd.DataFrame":
        """Return one line per row with every metric; intervals, if any, as ``fpr95_low`` and ``fpr95_high``."""
        with needed_by("rows.to_dataframe()"):
            import pandas as pd
        return pd.DataFrame(records(self))
