"""Files of scored inputs, as ``oodles score`` writes them."""

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

COLUMNS = ("path", "label", "class_name", "probability", "score", "p_value", "is_id", "error")


def scored(path: str, score: float, **values: Any) -> dict[str, Any]:
    """One scored input; it is accepted if its score is at least 0."""
    usual = {"label": 0, "class_name": "cat", "probability": 0.9, "p_value": 0.5, "is_id": score >= 0, "error": None}
    return {"path": path, "score": score, **usual, **values}


def failed(path: str, error: str = "empty file") -> dict[str, Any]:
    return dict.fromkeys(COLUMNS) | {"path": path, "is_id": False, "error": error}


def write_scored(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """Write results in the format of the name."""
    rows = [{name: row[name] for name in COLUMNS} for row in rows]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            for row in rows:
                cells = ["" if value is None else str(value) for value in row.values()]
                cells[COLUMNS.index("is_id")] = str(row["is_id"]).lower()
                writer.writerow(cells)
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        text, number = pa.string(), pa.float64()
        kinds = text, pa.int64(), text, number, number, number, pa.bool_(), text
        pq.write_table(pa.Table.from_pylist(rows, pa.schema(list(zip(COLUMNS, kinds, strict=True)))), path)
    return path
