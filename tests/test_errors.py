"""Common mistakes, made through the public interface: each error is one line that names the object and the remedy."""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import oodles as ood
from oodles import functional
from oodles.detectors import GEN, LTS, MCM, NCI, OptFS, RandomK, UnitPruning, ViM, WeiPer
from oodles.monitor import AlertRule, Monitor
from oodles.testing import example_features

TRAIN = example_features(rows=120, width=12, classes=4)
OTHER = example_features(rows=120, width=10, classes=4)
LOGITS = ood.Features(logits=torch.eye(3))
UNLABELLED = ood.Features(TRAIN.embedding, head=TRAIN.head)
MULTI = ood.Features(TRAIN.embedding, head=TRAIN.head, multilabel=True)
THRESHOLD = ood.Threshold(value=0.0, id_rate=0.95, calibration_size=100)
MODEL = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4))
NOWHERE = Path("nowhere") / "at all"
ROWS = torch.randn(30, 6)


def guard(detector=None, model=MODEL):
    return ood.Guard(model, detector or ood.Energy(), THRESHOLD)


# what was done -> the kind of error, and what its line must name
MISTAKES = {
    # constructors
    "dice_percent": (lambda: ood.DICE(p=90), ood.ArgumentError, "p=90"),
    "dice_all": (lambda: ood.DICE(p=1.0), ood.ArgumentError, "p=1.0"),
    "react_fraction": (lambda: ood.ReAct(percentile=0.9), ood.ArgumentError, "percentile=0.9"),
    "react_both": (lambda: ood.ReAct(percentile=90, threshold=1.0), ood.ArgumentError, "threshold=1.0"),
    "react_infinite": (lambda: ood.ReAct(threshold=float("inf")), ood.ArgumentError, "threshold=inf"),
    "react_per": (lambda: ood.ReAct(per="row"), ood.ArgumentError, "per='row'"),
    "lts_percentile": (lambda: LTS(percentile=100), ood.ArgumentError, "percentile=100"),
    "optfs_bins": (lambda: OptFS(bins=1), ood.ArgumentError, "bins=1"),
    "knn_zero": (lambda: ood.KNN(k=0), ood.ArgumentError, "k=0"),
    "knn_bank": (lambda: ood.KNN(k=20, bank=10), ood.ArgumentError, "bank=10"),
    "knn_float": (lambda: ood.KNN(k=2.5), ood.ArgumentError, "k=2.5"),
    "energy_temperature": (lambda: ood.Energy(temperature=0), ood.ArgumentError, "temperature=0"),
    "gen_gamma": (lambda: GEN(gamma=-1), ood.ArgumentError, "gamma=-1"),
    "nci_alpha": (lambda: NCI(alpha=-1), ood.ArgumentError, "alpha=-1"),
    "seed": (lambda: RandomK(seed=-1), ood.ArgumentError, "seed=-1"),
    "unit_pruning_by": (lambda: UnitPruning(by="size"), ood.ArgumentError, "by='size'"),
    "odin_epsilon": (lambda: ood.ODIN(epsilon=-0.1), ood.ArgumentError, "epsilon=-0.1"),
    "odin_std": (lambda: ood.ODIN(std=(0.2, 0.0)), ood.ArgumentError, "std=(0.2, 0.0)"),
    "mahalanobis_layers": (lambda: ood.Mahalanobis(layers="layer1"), ood.ArgumentError, "layers='layer1'"),
    "weiper_delta": (lambda: WeiPer(delta=-1), ood.ArgumentError, "delta=-1"),
    "shape_is_no_shape": (lambda: ood.DICE(shape=ood.KNN()), ood.ArgumentError, "shape=KNN"),
    "stage_with_score": (
        lambda: ood.DICE(shape=ood.ReAct(score=functional.msp)),
        ood.ArgumentError,
        "ReAct(percentile=90",
    ),
    "score_by_position": (lambda: ood.DICE(score=partial(functional.energy, 2.0)), ood.ArgumentError, "energy"),
    "score_parameter": (lambda: ood.DICE(score=partial(functional.msp, gamma=1)), ood.ArgumentError, "'gamma'"),
    "no_sparsifier": (lambda: ood.ReAct().with_p(0.5), ood.ArgumentError, "ReAct(percentile=90"),
    # text
    "parse_unknown": (lambda: ood.parse("dicee(0.9)"), ood.ArgumentError, "dicee"),
    "parse_argument": (lambda: ood.parse("knn(neighbours=5)"), ood.ArgumentError, "neighbours"),
    "parse_syntax": (lambda: ood.parse("dice(0.9"), ood.ArgumentError, "dice(0.9"),
    "parse_empty": (lambda: ood.parse(""), ood.ArgumentError, "''"),
    "parse_two_scores": (lambda: ood.parse("energy+msp"), ood.ArgumentError, "energy+msp"),
    "register_name": (lambda: ood.register("My Norm")(ood.MSP), ood.ArgumentError, "'My Norm'"),
    "register_taken": (lambda: ood.register("knn")(ood.MSP), ood.ArgumentError, "'knn'"),
    "register_function": (lambda: ood.register("mine")(len), ood.ArgumentError, "<built-in function len>"),
    # features
    "head_of_one_dimension": (lambda: ood.Head(torch.ones(3)), ood.ShapeError, "(3,)"),
    "head_bias": (lambda: ood.Head(torch.eye(3), torch.ones(2)), ood.ShapeError, "(2,)"),
    "head_integers": (lambda: ood.Head(torch.ones(2, 2, dtype=int)), ood.ShapeError, "torch.int64"),
    "head_nan": (lambda: ood.Head(torch.full((2, 2), torch.nan)), ood.DataError, "weight"),
    "features_empty": (lambda: ood.Features(torch.empty(0, 3)), ood.DataError, "no rows"),
    "features_nothing": (lambda: ood.Features(), ood.DataError, "embedding"),
    "features_nan": (lambda: ood.Features(torch.tensor([[1.0], [torch.nan]])), ood.DataError, "embedding"),
    "features_flat": (lambda: ood.Features(torch.ones(3)), ood.ShapeError, "embedding"),
    "features_rows": (lambda: ood.Features(torch.ones(3, 2), logits=torch.ones(2, 2)), ood.ShapeError, "logits"),
    "features_width": (lambda: ood.Features(torch.ones(3, 2), head=ood.Head(torch.eye(3))), ood.ShapeError, "2"),
    "features_labels": (
        lambda: ood.Features(torch.ones(2, 2), head=ood.Head(torch.eye(2)), labels=torch.tensor([0, 5])),
        ood.OodlesError,
        "labels",
    ),
    "features_names": (
        lambda: ood.Features(logits=torch.eye(3), class_names=["a"]),
        ood.ArgumentError,
        "1 class_names",
    ),
    "features_one_row": (lambda: TRAIN[3], ood.ArgumentError, "features[3]"),
    "features_no_rows": (lambda: TRAIN[5:5], ood.DataError, "slice(5, 5"),
    "features_split": (lambda: TRAIN[:20].split(), ood.DataError, "rows=20"),
    "features_fraction": (lambda: TRAIN.split(20), ood.ArgumentError, "fraction=20"),
    "features_batch": (lambda: next(TRAIN.batches(0)), ood.ArgumentError, "batch_size=0"),
    "features_concat": (lambda: ood.Features.concat([TRAIN, OTHER]), ood.ShapeError, "width=10"),
    "features_concat_columns": (lambda: ood.Features.concat([TRAIN, UNLABELLED]), ood.ShapeError, "labels"),
    "features_concat_nothing": (lambda: ood.Features.concat([]), ood.DataError, "concatenate"),
    "features_column": (lambda: TRAIN.column("layer.1"), ood.ShapeError, "layer.1"),
    "features_load": (lambda: ood.Features.load(NOWHERE), ood.FileError, "nowhere"),
    # fitting and scoring
    "not_fitted": (lambda: ood.DICE().score(TRAIN), ood.NotFittedError, "DICE(p=0.9"),
    "finish_nothing": (lambda: ood.DICE().finish(), ood.NotFittedError, "DICE(p=0.9"),
    "fitted_once_more": (lambda: ood.KNN().fit(TRAIN).partial_fit(TRAIN), ood.ArgumentError, "KNN(k=10"),
    "merge_other": (lambda: ood.KNN(k=5).merge(ood.KNN(k=6)), ood.ArgumentError, "k=6"),
    "merge_nothing": (lambda: ood.KNN().merge(ood.KNN()), ood.NotFittedError, "KNN(k=10"),
    "other_width": (lambda: ood.KNN().fit(TRAIN).score(OTHER), ood.ShapeError, "width 12"),
    "partial_other_width": (lambda: ood.KNN().partial_fit(TRAIN).partial_fit(OTHER), ood.ShapeError, "(12, 4)"),
    "no_embedding": (lambda: ood.KNN().fit(LOGITS), ood.ShapeError, "embedding"),
    "no_labels": (lambda: ood.Mahalanobis().fit(UNLABELLED), ood.ShapeError, "labels"),
    "multilabel": (lambda: ood.MSP().score(MULTI), ood.ArgumentError, "msp"),
    "dimension": (lambda: ViM(dimension=12).fit(TRAIN), ood.ArgumentError, "dimension=12"),
    "no_cosines": (lambda: MCM().fit(TRAIN), ood.DataError, "MCM(temperature=1.0)"),
    "combine_one": (lambda: ood.combine(["knn"], train=TRAIN, held_out=TRAIN), ood.ArgumentError, "['knn']"),
    # thresholds and metrics
    "id_rate": (lambda: ood.calibrate([1.0] * 50, id_rate=95), ood.ArgumentError, "id_rate=95"),
    "too_few": (lambda: ood.calibrate([1.0], id_rate=0.95), ood.DataError, "id_rate=0.95"),
    "nan_scores": (lambda: ood.calibrate([1.0, float("nan")]), ood.DataError, "1 of 2 ID scores"),
    "text_scores": (lambda: ood.calibrate(["high"]), ood.DataError, "<U4"),
    "no_scores": (lambda: ood.calibrate([]), ood.DataError, "(0,)"),
    "threshold_nan": (lambda: ood.Threshold(float("nan"), 0.95, 9), ood.ArgumentError, "nan"),
    "metrics_empty": (lambda: ood.metrics.auroc([], [1.0]), ood.DataError, "id_scores"),
    "metrics_nan": (lambda: ood.metrics.auroc([1.0], [float("nan")]), ood.DataError, "ood_scores"),
    "metrics_text": (lambda: ood.metrics.auroc(["a"], [1.0]), ood.DataError, "id_scores"),
    "metrics_tpr": (lambda: ood.metrics.fpr_at_tpr([1.0], [0.0], tpr=95), ood.ArgumentError, "tpr=95"),
    "metrics_positive": (lambda: ood.metrics.aupr([1.0], [0.0], positive="in"), ood.ArgumentError, "positive='in'"),
    "metrics_bootstrap": (lambda: ood.metrics.evaluate([1.0], [0.0], bootstrap=-1), ood.ArgumentError, "bootstrap=-1"),
    "fdr": (lambda: ood.conformal(ood.MSP(), TRAIN).is_ood(TRAIN, fdr=5), ood.ArgumentError, "fdr=5"),
    # benchmarks and selection
    "benchmark_no_ood": (lambda: ood.benchmark(["msp"], train=TRAIN, test=TRAIN, ood={}), ood.DataError, "OOD set"),
    "benchmark_twice": (
        lambda: ood.benchmark(["msp", "msp"], train=TRAIN, test=TRAIN, ood={"a": TRAIN}),
        ood.ArgumentError,
        "'msp'",
    ),
    "benchmark_no_detector": (
        lambda: ood.benchmark([3], train=TRAIN, test=TRAIN, ood={"a": TRAIN}),
        ood.ArgumentError,
        "3 is not a detector",
    ),
    "select_nothing": (lambda: ood.select(train=TRAIN, held_out=TRAIN, outliers={}), ood.ArgumentError, "outliers"),
    "select_network": (
        lambda: ood.select(train=TRAIN, held_out=TRAIN, outliers={"a": TRAIN}, candidates=["odin"]),
        ood.ArgumentError,
        "odin",
    ),
    "select_p_grid": (
        lambda: ood.selection.select_p(ood.DICE(), train=TRAIN, held_out=TRAIN, outliers=TRAIN, grid=()),
        ood.ArgumentError,
        "grid",
    ),
    "mixed_without_head": (lambda: ood.selection.mixed_features(LOGITS), ood.DataError, "head"),
    "outlier_kind": (
        lambda: ood.selection.synthetic_outliers(torch.rand(2, 3, 4, 4), "blur"),
        ood.ArgumentError,
        "kind='blur'",
    ),
    "outlier_images": (
        lambda: ood.selection.synthetic_outliers(torch.rand(3, 4, 4), "jigsaw"),
        ood.ArgumentError,
        "(3, 4, 4)",
    ),
    # networks
    "extract_nothing": (lambda: ood.extract(MODEL, [], progress=False), ood.DataError, "loader"),
    "extract_width": (lambda: ood.extract(MODEL, [torch.ones(2, 5)], progress=False), ood.OodlesError, "Sequential"),
    "extract_layer": (lambda: ood.extract(MODEL, [ROWS], layers=["body"], progress=False), ood.ArgumentError, "body"),
    "extract_nan": (lambda: ood.extract(MODEL, [ROWS * torch.nan], progress=False), ood.DataError, "input 0"),
    "extract_on_bad": (lambda: ood.extract(MODEL, [ROWS], on_bad="skip"), ood.ArgumentError, "on_bad='skip'"),
    "extract_amp": (lambda: ood.extract(MODEL, [ROWS], amp=torch.float64), ood.ArgumentError, "torch.float64"),
    "extract_no_head": (lambda: ood.extract(nn.Sequential(MODEL, nn.ReLU()), [ROWS]), ood.HeadError, "Sequential"),
    "extract_head_name": (lambda: ood.extract(MODEL, [ROWS], head="classifier"), ood.OodlesError, "classifier"),
    "extract_classes": (lambda: ood.extract(MODEL, [ROWS], classes=["a", "b"]), ood.ArgumentError, "2"),
    "model_unknown": (lambda: ood.models.load("resnet"), ood.ArgumentError, "'resnet'"),
    "model_text": (lambda: ood.models.build_model("resnet50"), ood.ArgumentError, "'resnet50'"),
    "checkpoint_missing": (lambda: ood.models.load_checkpoint(MODEL, NOWHERE), ood.FileError, "nowhere"),
    # guards
    "guard_not_fitted": (lambda: guard(ood.KNN()), ood.NotFittedError, "KNN(k=10"),
    "guard_threshold": (lambda: ood.Guard(MODEL, ood.Energy(), 0.5), ood.ArgumentError, "threshold=0.5"),
    "guard_no_images": (lambda: guard()(torch.empty(0, 6)), ood.DataError, "guard"),
    "guard_other_model": (lambda: guard(ood.KNN().fit(OTHER))(ROWS), ood.ShapeError, "(10, 4)"),
    "guard_without_head": (
        lambda: ood.Guard(MODEL, ood.KNN().fit(TRAIN), THRESHOLD, head=False),
        ood.ArgumentError,
        "KNN(k=10",
    ),
    "guard_classes": (
        lambda: ood.Guard(MODEL, ood.Energy(), THRESHOLD, classes=["a"])(ROWS),
        ood.ArgumentError,
        "1 names",
    ),
    "guard_load": (lambda: ood.Guard.load(NOWHERE, MODEL), ood.FileError, "nowhere"),
    "guard_open": (lambda: ood.Guard.open(NOWHERE), ood.FileError, "nowhere"),
    "load_detector": (lambda: ood.load_detector(NOWHERE), ood.FileError, "nowhere"),
    "save_not_fitted": (lambda: ood.save_detector(ood.KNN(), NOWHERE), ood.NotFittedError, "KNN(k=10"),
    # monitoring
    "rule": (lambda: AlertRule(error=5.0), ood.ArgumentError, "error=5.0"),
    "window": (lambda: Monitor(THRESHOLD, window=0), ood.ArgumentError, "window=0"),
    "observe": (
        lambda: Monitor(THRESHOLD).observe(score=np.ones(2), p_value=np.ones(3), label=[0, 0], is_id=[True, True]),
        ood.OodlesError,
        "3",
    ),
}

CLAUSE = r"(?:^|[;:.,] )(?:\w+, )?(?:or )?"
VERBS = (
    "add|call|check|choose|convert|define|delete|export|extract|fit|give|install|load|make|move|name|pass|run|save|see|"
    "try|use|write"
)
REMEDY = re.compile(rf"; |\bmust\b|\?$|{CLAUSE}(?:{VERBS})\b", re.IGNORECASE)


@pytest.mark.parametrize("name", MISTAKES)
def test_an_error_names_the_object_and_the_remedy_in_one_line(name):
    mistake, kind, named = MISTAKES[name]
    with pytest.raises(kind) as caught:
        mistake()
    line = str(caught.value)
    assert isinstance(caught.value, ood.OodlesError)
    assert "\n" not in line
    assert named in line
    assert REMEDY.search(line), line


def test_every_kind_of_error_is_among_them():
    kinds = {kind for _, kind, _ in MISTAKES.values()}
    every = {each for each in vars(ood.errors).values() if isinstance(each, type) and issubclass(each, ood.OodlesError)}
    assert every - kinds == {ood.MissingPackageError}  # tests/test_extras.py and tests/test_without_torch.py


def test_a_line_without_a_remedy_would_be_noticed():
    assert not REMEDY.search("5 scores have the shape (2, 3)")
    assert REMEDY.search("5 scores have the shape (2, 3); give one number per row")
    assert REMEDY.search("2 heads are found. Pass head= with the name of one")
