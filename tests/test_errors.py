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
from oodles.errors import ArgumentError, DataError, FileError, HeadError, NotFittedError, ShapeError
from oodles.monitor import AlertRule, Monitor
from oodles.selection import synthetic_outliers
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


benchmark = partial(ood.benchmark, train=TRAIN, test=TRAIN)
select = partial(ood.select, train=TRAIN, held_out=TRAIN)
select_p = partial(ood.selection.select_p, train=TRAIN, held_out=TRAIN, outliers=TRAIN)


def guard(detector=None, **options):
    return ood.Guard(MODEL, detector or ood.Energy(), THRESHOLD, **options)


# what was done -> the kind of error, and what its line must name
MISTAKES = {
    # constructors
    "dice_percent": (lambda: ood.DICE(p=90), ArgumentError, "p=90"),
    "dice_all": (lambda: ood.DICE(p=1.0), ArgumentError, "p=1.0"),
    "react_fraction": (lambda: ood.ReAct(percentile=0.9), ArgumentError, "percentile=0.9"),
    "react_both": (lambda: ood.ReAct(percentile=90, threshold=1.0), ArgumentError, "threshold=1.0"),
    "react_infinite": (lambda: ood.ReAct(threshold=float("inf")), ArgumentError, "threshold=inf"),
    "react_per": (lambda: ood.ReAct(per="row"), ArgumentError, "per='row'"),
    "lts_percentile": (lambda: LTS(percentile=100), ArgumentError, "percentile=100"),
    "optfs_bins": (lambda: OptFS(bins=1), ArgumentError, "bins=1"),
    "knn_zero": (lambda: ood.KNN(k=0), ArgumentError, "k=0"),
    "knn_bank": (lambda: ood.KNN(k=20, bank=10), ArgumentError, "bank=10"),
    "knn_float": (lambda: ood.KNN(k=2.5), ArgumentError, "k=2.5"),
    "energy_temperature": (lambda: ood.Energy(temperature=0), ArgumentError, "temperature=0"),
    "gen_gamma": (lambda: GEN(gamma=-1), ArgumentError, "gamma=-1"),
    "nci_alpha": (lambda: NCI(alpha=-1), ArgumentError, "alpha=-1"),
    "seed": (lambda: RandomK(seed=-1), ArgumentError, "seed=-1"),
    "unit_pruning_by": (lambda: UnitPruning(by="size"), ArgumentError, "by='size'"),
    "odin_epsilon": (lambda: ood.ODIN(epsilon=-0.1), ArgumentError, "epsilon=-0.1"),
    "odin_std": (lambda: ood.ODIN(std=(0.2, 0.0)), ArgumentError, "std=(0.2, 0.0)"),
    "mahalanobis_layers": (lambda: ood.Mahalanobis(layers="layer1"), ArgumentError, "layers='layer1'"),
    "weiper_delta": (lambda: WeiPer(delta=-1), ArgumentError, "delta=-1"),
    "shape_is_no_shape": (lambda: ood.DICE(shape=ood.KNN()), ArgumentError, "shape=KNN"),
    "stage_with_score": (lambda: ood.DICE(shape=ood.ReAct(score=functional.msp)), ArgumentError, "ReAct(percentile=90"),
    "score_by_position": (lambda: ood.DICE(score=partial(functional.energy, 2.0)), ArgumentError, "energy"),
    "score_parameter": (lambda: ood.DICE(score=partial(functional.msp, gamma=1)), ArgumentError, "'gamma'"),
    "no_sparsifier": (lambda: ood.ReAct().with_p(0.5), ArgumentError, "ReAct(percentile=90"),
    # text
    "parse_unknown": (lambda: ood.parse("dicee(0.9)"), ArgumentError, "dicee"),
    "parse_argument": (lambda: ood.parse("knn(neighbours=5)"), ArgumentError, "neighbours"),
    "parse_syntax": (lambda: ood.parse("dice(0.9"), ArgumentError, "dice(0.9"),
    "parse_empty": (lambda: ood.parse(""), ArgumentError, "''"),
    "parse_two_scores": (lambda: ood.parse("energy+msp"), ArgumentError, "energy+msp"),
    "register_name": (lambda: ood.register("My Norm")(ood.MSP), ArgumentError, "'My Norm'"),
    "register_taken": (lambda: ood.register("knn")(ood.MSP), ArgumentError, "'knn'"),
    "register_function": (lambda: ood.register("mine")(len), ArgumentError, "<built-in function len>"),
    # features
    "head_of_one_dimension": (lambda: ood.Head(torch.ones(3)), ShapeError, "(3,)"),
    "head_bias": (lambda: ood.Head(torch.eye(3), torch.ones(2)), ShapeError, "(2,)"),
    "head_integers": (lambda: ood.Head(torch.ones(2, 2, dtype=int)), ShapeError, "torch.int64"),
    "head_nan": (lambda: ood.Head(torch.full((2, 2), torch.nan)), DataError, "weight"),
    "features_empty": (lambda: ood.Features(torch.empty(0, 3)), DataError, "no rows"),
    "features_nothing": (lambda: ood.Features(), DataError, "embedding"),
    "features_nan": (lambda: ood.Features(torch.tensor([[1.0], [torch.nan]])), DataError, "embedding"),
    "features_flat": (lambda: ood.Features(torch.ones(3)), ShapeError, "embedding"),
    "features_rows": (lambda: ood.Features(torch.ones(3, 2), logits=torch.ones(2, 2)), ShapeError, "logits"),
    "features_width": (lambda: ood.Features(torch.ones(3, 2), head=ood.Head(torch.eye(3))), ShapeError, "2"),
    "features_labels": (
        lambda: ood.Features(torch.ones(2, 2), head=ood.Head(torch.eye(2)), labels=torch.tensor([0, 5])),
        ood.OodlesError,
        "labels",
    ),
    "features_names": (lambda: ood.Features(logits=torch.eye(3), class_names=["a"]), ArgumentError, "1 class_names"),
    "features_one_row": (lambda: TRAIN[3], ArgumentError, "features[3]"),
    "features_no_rows": (lambda: TRAIN[5:5], DataError, "slice(5, 5"),
    "features_split": (lambda: TRAIN[:20].split(), DataError, "rows=20"),
    "features_fraction": (lambda: TRAIN.split(20), ArgumentError, "fraction=20"),
    "features_batch": (lambda: next(TRAIN.batches(0)), ArgumentError, "batch_size=0"),
    "features_concat": (lambda: ood.Features.concat([TRAIN, OTHER]), ShapeError, "width=10"),
    "features_concat_columns": (lambda: ood.Features.concat([TRAIN, UNLABELLED]), ShapeError, "labels"),
    "features_concat_nothing": (lambda: ood.Features.concat([]), DataError, "concatenate"),
    "features_column": (lambda: TRAIN.column("layer.1"), ShapeError, "layer.1"),
    "features_load": (lambda: ood.Features.load(NOWHERE), FileError, "nowhere"),
    # fitting and scoring
    "not_fitted": (lambda: ood.DICE().score(TRAIN), NotFittedError, "DICE(p=0.9"),
    "finish_nothing": (lambda: ood.DICE().finish(), NotFittedError, "DICE(p=0.9"),
    "fitted_once_more": (lambda: ood.KNN().fit(TRAIN).partial_fit(TRAIN), ArgumentError, "KNN(k=10"),
    "merge_other": (lambda: ood.KNN(k=5).merge(ood.KNN(k=6)), ArgumentError, "k=6"),
    "merge_nothing": (lambda: ood.KNN().merge(ood.KNN()), NotFittedError, "KNN(k=10"),
    "other_width": (lambda: ood.KNN().fit(TRAIN).score(OTHER), ShapeError, "width 12"),
    "partial_other_width": (lambda: ood.KNN().partial_fit(TRAIN).partial_fit(OTHER), ShapeError, "(12, 4)"),
    "no_embedding": (lambda: ood.KNN().fit(LOGITS), ShapeError, "embedding"),
    "no_labels": (lambda: ood.Mahalanobis().fit(UNLABELLED), ShapeError, "labels"),
    "multilabel": (lambda: ood.MSP().score(MULTI), ArgumentError, "msp"),
    "dimension": (lambda: ViM(dimension=12).fit(TRAIN), ArgumentError, "dimension=12"),
    "no_cosines": (lambda: MCM().fit(TRAIN), DataError, "MCM(temperature=1.0)"),
    "combine_one": (lambda: ood.combine(["knn"], train=TRAIN, held_out=TRAIN), ArgumentError, "['knn']"),
    # thresholds and metrics
    "id_rate": (lambda: ood.calibrate([1.0] * 50, id_rate=95), ArgumentError, "id_rate=95"),
    "too_few": (lambda: ood.calibrate([1.0], id_rate=0.95), DataError, "id_rate=0.95"),
    "nan_scores": (lambda: ood.calibrate([1.0, float("nan")]), DataError, "1 of 2 ID scores"),
    "text_scores": (lambda: ood.calibrate(["high"]), DataError, "<U4"),
    "no_scores": (lambda: ood.calibrate([]), DataError, "(0,)"),
    "threshold_nan": (lambda: ood.Threshold(float("nan"), 0.95, 9), ArgumentError, "nan"),
    "metrics_empty": (lambda: ood.metrics.auroc([], [1.0]), DataError, "id_scores"),
    "metrics_nan": (lambda: ood.metrics.auroc([1.0], [float("nan")]), DataError, "ood_scores"),
    "metrics_text": (lambda: ood.metrics.auroc(["a"], [1.0]), DataError, "id_scores"),
    "metrics_tpr": (lambda: ood.metrics.fpr_at_tpr([1.0], [0.0], tpr=95), ArgumentError, "tpr=95"),
    "metrics_positive": (lambda: ood.metrics.aupr([1.0], [0.0], positive="in"), ArgumentError, "positive='in'"),
    "metrics_bootstrap": (lambda: ood.metrics.evaluate([1.0], [0.0], bootstrap=-1), ArgumentError, "bootstrap=-1"),
    "fdr": (lambda: ood.conformal(ood.MSP(), TRAIN).is_ood(TRAIN, fdr=5), ArgumentError, "fdr=5"),
    # benchmarks and selection
    "benchmark_no_ood": (lambda: benchmark(["msp"], ood={}), DataError, "OOD set"),
    "benchmark_twice": (lambda: benchmark(["msp", "msp"], ood={"a": TRAIN}), ArgumentError, "'msp'"),
    "benchmark_no_detector": (lambda: benchmark([3], ood={"a": TRAIN}), ArgumentError, "3 is not a detector"),
    "select_nothing": (lambda: select(outliers={}), ArgumentError, "outliers"),
    "select_network": (lambda: select(outliers={"a": TRAIN}, candidates=["odin"]), ArgumentError, "odin"),
    "select_p_grid": (lambda: select_p(ood.DICE(), grid=()), ArgumentError, "grid"),
    "mixed_without_head": (lambda: ood.selection.mixed_features(LOGITS), DataError, "head"),
    "outlier_kind": (lambda: synthetic_outliers(torch.rand(2, 3, 4, 4), "blur"), ArgumentError, "kind='blur'"),
    "outlier_images": (lambda: synthetic_outliers(torch.rand(3, 4, 4), "jigsaw"), ArgumentError, "(3, 4, 4)"),
    # networks
    "extract_nothing": (lambda: ood.extract(MODEL, [], progress=False), DataError, "loader"),
    "extract_width": (lambda: ood.extract(MODEL, [torch.ones(2, 5)], progress=False), ood.OodlesError, "Sequential"),
    "extract_layer": (lambda: ood.extract(MODEL, [ROWS], layers=["body"], progress=False), ArgumentError, "body"),
    "extract_nan": (lambda: ood.extract(MODEL, [ROWS * torch.nan], progress=False), DataError, "input 0"),
    "extract_on_bad": (lambda: ood.extract(MODEL, [ROWS], on_bad="skip"), ArgumentError, "on_bad='skip'"),
    "extract_amp": (lambda: ood.extract(MODEL, [ROWS], amp=torch.float64), ArgumentError, "torch.float64"),
    "extract_no_head": (lambda: ood.extract(nn.Sequential(MODEL, nn.ReLU()), [ROWS]), HeadError, "Sequential"),
    "extract_head_name": (lambda: ood.extract(MODEL, [ROWS], head="classifier"), ood.OodlesError, "classifier"),
    "extract_classes": (lambda: ood.extract(MODEL, [ROWS], classes=["a", "b"]), ArgumentError, "2"),
    "model_unknown": (lambda: ood.models.load("resnet"), ArgumentError, "'resnet'"),
    "model_text": (lambda: ood.models.build_model("resnet50"), ArgumentError, "'resnet50'"),
    "checkpoint_missing": (lambda: ood.models.load_checkpoint(MODEL, NOWHERE), FileError, "nowhere"),
    # guards
    "guard_not_fitted": (lambda: guard(ood.KNN()), NotFittedError, "KNN(k=10"),
    "guard_threshold": (lambda: ood.Guard(MODEL, ood.Energy(), 0.5), ArgumentError, "threshold=0.5"),
    "guard_no_images": (lambda: guard()(torch.empty(0, 6)), DataError, "guard"),
    "guard_other_model": (lambda: guard(ood.KNN().fit(OTHER))(ROWS), ShapeError, "(10, 4)"),
    "guard_without_head": (lambda: guard(ood.KNN().fit(TRAIN), head=False), ArgumentError, "KNN(k=10"),
    "guard_classes": (lambda: guard(classes=["a"])(ROWS), ArgumentError, "1 names"),
    "guard_load": (lambda: ood.Guard.load(NOWHERE, MODEL), FileError, "nowhere"),
    "guard_open": (lambda: ood.Guard.open(NOWHERE), FileError, "nowhere"),
    "load_detector": (lambda: ood.load_detector(NOWHERE), FileError, "nowhere"),
    "save_not_fitted": (lambda: ood.save_detector(ood.KNN(), NOWHERE), NotFittedError, "KNN(k=10"),
    # monitoring
    "rule": (lambda: AlertRule(error=5.0), ArgumentError, "error=5.0"),
    "window": (lambda: Monitor(THRESHOLD, window=0), ArgumentError, "window=0"),
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
