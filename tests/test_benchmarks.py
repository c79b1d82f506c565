"""The benchmarks measure what they say, and ratios that must not get much worse have not."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from oodles.detectors import DICE, GradNorm
from oodles.features import Features
from oodles.metrics import evaluate
from studies.bench import baselines
from studies.bench.detectors import compare
from studies.bench.larger_than_memory import write_store
from studies.bench.page import Report, pivot, table
from studies.bench.peers import linear
from studies.bench.results import Row, cost, from_record, speedup
from studies.data import example
from studies.memory import peak_growth
from studies.pages import fill
from studies.timing import paired

# The harness ----------------------------------------------------------------------------------------------------------


def test_sides_take_turns_after_one_round_to_warm_up() -> None:
    called: list[str] = []
    sides = {name: (lambda name=name: called.append(name)) for name in ("a", "b")}
    times = paired(sides, budget=0, least=2)
    assert called == ["a", "b"] * 3
    assert [len(each) for each in times.values()] == [2, 2]


def test_a_target_is_met_or_missed_or_lies_within_the_spread() -> None:
    times = {"ours": [1.0, 9.0, 1.0, 1.0, 1.0, 2.0], "other": [3.0, 3.0, 4.0, 9.0, 7.0, 5.0]}
    row = speedup("x", "y", times)
    assert (row.ours, row.other, row.ratio, row.low, row.high, row.repeats) == (1.0, 3.0, 3.0, 3.0, 5.0, 6)
    assert [speedup("x", "y", times, target=target).met for target in (2, 4, 6, None)] == ["yes", "noise", "no", ""]
    assert cost("x", "y", times).ratio == pytest.approx(1 / 3)
    assert [cost("x", "y", times, target=target).met for target in (0.5, 0.3, 0.1)] == ["yes", "noise", "no"]


def test_a_row_survives_json() -> None:
    row = Row("x", "y", "cost", 1.0, 2.0, 0.5, 0.25, 0.75, 3, 0.5, "MB", 12.0, "note")
    assert from_record(json.loads(json.dumps(row.as_record()))) == row


def test_memory_counts_the_peak_and_not_what_was_there_before() -> None:
    before = torch.ones(5_000_000)

    def work() -> None:
        torch.ones(25_000_000).add_(before[0])  # 100 MB, freed at the end

    assert 80e6 < peak_growth(work) < 200e6


# What it compares with ------------------------------------------------------------------------------------------------


def test_baselines_compute_the_same_as_ours() -> None:
    features = example(60, 32, 10)
    detector = DICE(p=0.7).fit(features)
    broadcast = baselines.broadcast_dice(features.embedding, detector.weight_, detector.bias_)
    torch.testing.assert_close(detector.score(features), broadcast, rtol=1e-4, atol=1e-4)
    backward = baselines.gradnorm_per_sample(linear(features), features.embedding)
    ours = GradNorm().score(features)
    torch.testing.assert_close(ours / ours.sum(), backward / backward.sum(), rtol=1e-3, atol=1e-6)
    generator = np.random.default_rng(0)
    ids, oods = generator.normal(1, 1, 500), generator.normal(0, 1, 400)
    row = evaluate(ids, oods).as_dict()
    for found in (baselines.metrics_in_a_loop(ids, oods), baselines.metrics_of_scikit_learn(ids, oods)):
        assert found == pytest.approx({name: row[name] for name in found}, abs=0.01)


def test_a_detector_is_compared_with_a_peer_on_the_same_rows() -> None:
    class Reversed:
        """Scores like MaxLogit, but as an outlier score and slowly."""

        spec, name, at, slow_fit, slow_score = "max_logit", "Reversed", "logits", "", ""
        requires_fit = False

        def build(self, head: torch.nn.Linear) -> "Reversed":
            return self

        def score(self, detector: object, features: Features) -> torch.Tensor:
            return torch.stack([row.max() for row in features.logits])

    rows = list(compare(Reversed(), example(400, 16, 10), example(400, 16, 10, 2), budget=0.05))  # type: ignore[arg-type]
    assert [row.name for row in rows] == ["score max_logit, 0k x 16, C=10"]
    assert rows[0].ratio > 1
    assert "ranks" not in rows[0].note


def test_the_store_that_is_written_has_the_rows_and_the_head(tmp_path: Path) -> None:
    write_store(tmp_path / "store", rows=9_000, width=8, classes=5)
    features = Features.load(tmp_path / "store")
    assert (len(features), features.width, features.classes) == (9_000, 8, 5)
    assert features.embedding.dtype == torch.float16
    assert features.labels is not None
    assert features.labels.unique().tolist() == [0, 1, 2, 3, 4]


# The page -------------------------------------------------------------------------------------------------------------


def test_every_result_has_its_place_in_the_page(tmp_path: Path) -> None:
    report = Report(tmp_path / "performance.json")
    slow = Row("fit msp, 1k x 2, C=3", "MaxSoftmax", "speedup", 2.0, 1.0, 0.5, 0.4, 0.6, 3, 1.0)
    report.replace("detectors", [slow], minutes=1.0)
    text = fill("performance", **report.values())
    assert "| `msp` | MaxSoftmax | **0.50 (0.40 to 0.60)** |" in text
    assert "- detectors: fit msp, 1k x 2, C=3: 0.50 against MaxSoftmax, at least 1" in text
    assert "{" not in text


def test_tables_show_memory_only_where_it_was_measured() -> None:
    row = Row("x", "y", "cost", 1e-4, 2.0, 0.5, 0.25, 0.75, 3)
    assert "peak MB" not in table([row])
    assert table([Row(**{**row.as_record(), "memory": 7.0})]).endswith("| 100 us | 2 s | 7 |")
    assert pivot([]) == table([])
