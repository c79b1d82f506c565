"""OpenOOD's protocol: its suites, image lists, metrics, group averages and leaderboard."""

import json
import subprocess
import sys
from statistics import fmean

import numpy as np
import pytest
import support.rows
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from support.experiment import experiment, ood_features
from support.images import write_cifar_batch, write_image
from support.rows import cell, names

from oodles.bench import OPENOOD, benchmark, suite
from oodles.bench.openood import AUPR, LEADERBOARD, compare_groups, has_leaderboard, leaderboard
from oodles.bench.tables import latex, markdown
from oodles.detectors import Detector, detector_list, parse
from oodles.errors import DataError
from oodles.features import Features
from oodles.metrics import evaluate

GROUPS = {"near": ("a", "b"), "far": ("c", "d")}


def row(detector, ood_set, fpr95_ood=0.5, auroc=0.8, **more):
    return support.rows.row(detector, ood_set, 0.99, auroc, fpr95_ood=fpr95_ood, **more)


# The metrics ------------------------------------------------------------------------------------


def scikit_learn(id_scores, ood_scores):
    """FPR95, AUROC, AUPR-in and AUPR-out as OpenOOD defines them: OOD is positive, so scores are negated."""
    scores = -np.concatenate([id_scores, ood_scores]).astype(np.float64)
    is_ood = np.repeat([0, 1], [len(id_scores), len(ood_scores)])
    fpr, tpr, _ = roc_curve(is_ood, scores, drop_intermediate=False)
    return (
        fpr[np.argmax(tpr >= 0.95)],
        roc_auc_score(is_ood, scores),
        average_precision_score(1 - is_ood, -scores),
        average_precision_score(is_ood, scores),
    )


scores = st.lists(st.integers(-20, 20).map(float) | st.floats(-20, 20, width=32), min_size=1, max_size=80)


@given(scores, scores)
def test_the_columns_of_a_row_are_openoods_metrics(id_scores, ood_scores):
    ours = evaluate(id_scores, ood_scores)
    theirs = scikit_learn(id_scores, ood_scores)
    assert (ours.fpr95_ood, ours.auroc, ours.aupr_id, ours.aupr_ood) == pytest.approx(theirs, abs=1e-12)


def test_the_averages_are_plain_means_of_scikit_learns_numbers():
    sets = experiment()
    head = sets["train"].head
    sizes = {"a": 90, "b": 40, "c": 70, "d": 50}
    sets["ood"] = {name: ood_features(head, seed, rows) for seed, (name, rows) in enumerate(sizes.items())}
    rows = benchmark(["msp", "dice(0.5)"], **sets)
    for metrics, at in (((), 0), ((AUPR,), 2)):
        view = compare_groups(rows, GROUPS, *metrics)
        assert names(view) == ["a", "b", "near", "c", "d", "far"]
        for spec, label in (("msp", "msp"), ("dice(0.5)+energy", "dice(0.5)")):
            detector: Detector = parse(spec).fit(sets["train"])
            test = detector.score(sets["test"])
            theirs = {name: scikit_learn(test, detector.score(part)) for name, part in sets["ood"].items()}
            for column, sets_of in {**{name: name for name in "abcd"}, "near": "ab", "far": "cd"}.items():
                expected = tuple(f"{100 * fmean(theirs[name][k] for name in sets_of):.1f}" for k in (at, at + 1))
                assert cell(view, label, column)[0] == expected


# The view ---------------------------------------------------------------------------------------


def test_the_best_of_each_column_and_metric_is_marked():
    rows = [row("msp", "a", 0.2, 0.7), row("msp", "c", 0.4, 0.9)]
    rows += [row("energy", "a", 0.3, 0.8), row("energy", "c", 0.4, 0.8)]
    view = compare_groups(rows, GROUPS)
    assert names(view) == ["a", "near", "c", "far"]
    assert cell(view, "msp", "near")[1] == (True, False)
    assert cell(view, "energy", "near")[1] == (False, True)
    assert cell(view, "msp", "far")[1] == (True, True)
    assert cell(view, "energy", "far")[1] == (True, False), "equal as shown"
    assert "FPR95 / AUROC" in view.caption
    assert "near without b; far without d" in view.caption
    aupr = compare_groups(rows, GROUPS, AUPR)
    assert cell(aupr, "msp", "near")[0] == ("70.0", "60.0")
    assert cell(aupr, "msp", "near")[1] == (True, True)
    assert "AUPR-in / AUPR-out" in aupr.caption
    assert "trapezoidal" in aupr.caption
    assert "95 %" not in aupr.caption
    for render in (markdown, latex):
        assert "near" in render(view)


def test_several_runs_become_mean_and_population_deviation():
    values = {"one": (0.1, 0.3), "two": (0.2, 0.8), "three": (0.6, 0.1)}
    rows = [row("msp", "ab"[at], pair[at], 1 - pair[at], run=run) for run, pair in values.items() for at in (0, 1)]
    means = [100 * fmean(pair) for pair in values.values()]
    view = compare_groups(rows, GROUPS)
    assert cell(view, "msp", "near")[0] == (
        f"{np.mean(means):.1f}±{np.std(means):.1f}",
        f"{100 - np.mean(means):.1f}±{np.std(means):.1f}",
    )
    a = [100 * pair[0] for pair in values.values()]
    assert cell(view, "msp", "a")[0][0] == f"{np.mean(a):.1f}±{np.std(a):.1f}"


def test_sets_without_a_group_and_groups_without_sets():
    rows = [row("msp", "mine"), row("msp", "a"), row("energy", "mine")]
    view = compare_groups(rows, GROUPS)
    assert names(view) == ["a", "near", "mine"]
    assert cell(view, "energy", "near") == (("-",), (False,), [])
    assert cell(view, "msp", "near")[1] == (True, True)


def test_a_group_is_averaged_over_the_same_sets_in_every_run():
    rows = [row("msp", "a", 0.2, run="one"), row("msp", "b", 0.4, run="one"), row("msp", "a", 0.8, run="two")]
    view = compare_groups(rows, GROUPS)
    assert cell(view, "msp", "near")[0][0] == "30.0", "the second run has no b"
    assert cell(view, "msp", "a")[0][0] == "50.0±30.0"


# The leaderboard --------------------------------------------------------------------------------


def test_the_leaderboards_numbers_by_method_whatever_its_settings():
    assert leaderboard("openood-cifar10", "msp") == {"near": 88.03, "far": 90.73}
    assert leaderboard("openood-cifar100", "knn(k=10)") == {"near": 80.18, "far": 82.40}
    assert leaderboard("openood-imagenet", "dice(0.7)+energy") == {"near": 73.07, "far": 90.95}
    assert leaderboard("openood-imagenet", "adascale") == {"near": 84.42, "far": 97.27}
    for other in ("dice(0.9)+msp", "react(90)+dice(0.9)+energy", "adascale(scaled='logits')", "ash_s(90)+energy"):
        assert leaderboard("openood-cifar10", other) == {}, other
    assert [has_leaderboard(name) for name in OPENOOD] == [True, True, False, True]
    for method in LEADERBOARD:
        assert parse(method).spec.split("(")[0] in method, "names of detectors"


def test_each_listed_detector_has_at_most_one_row_of_the_leaderboard():
    listed = [spec for spec in (each.spec for each in detector_list()) if leaderboard("openood-cifar10", spec)]
    assert len(listed) == len(LEADERBOARD) - 1, "all but AdaSCALE, which needs the network"


def test_the_leaderboard_is_beside_the_groups_only():
    rows = [row(spec, name) for spec in ("msp", "max_logit") for name in "abcd"]
    view = compare_groups(rows, GROUPS, published="openood-cifar10")
    assert cell(view, "msp", "near")[2] == ["(88.0)"]
    assert cell(view, "msp", "far")[2] == ["(90.7)"]
    assert cell(view, "msp", "a")[2] == cell(view, "max_logit", "near")[2] == []
    assert "leaderboard" in view.caption
    assert cell(compare_groups(rows, GROUPS, AUPR, published="openood-cifar10"), "msp", "near")[2] == []
    assert "leaderboard" not in compare_groups(rows, GROUPS).caption


# The suites -------------------------------------------------------------------------------------


def test_the_groups_and_image_lists_cover_every_set():
    for name, one in OPENOOD.items():
        assert one.name == name
        assert list(one.ood) == [*one.groups["near"], *one.groups["far"]]
        assert set(one.lists) == {"train", "test", *one.ood}
        assert not one.per_class, "OpenOOD uses all of SVHN"
    for name, part, file, folder in (
        ("cifar10", "textures", "test_texture", "images_classic"),
        ("imagenet", "textures", "test_textures", "images_classic"),
        ("imagenet", "train", "train_imagenet", "images_largescale"),
    ):
        assert OPENOOD[f"openood-{name}"].lists[part] == (f"benchmark_imglist/{name}/{file}.txt", folder)


@pytest.fixture
def original(tmp_path):
    """Both CIFARs as their authors distribute them, and textures."""
    write_cifar_batch(tmp_path / "cifar-10-batches-py" / "data_batch_1", 12)
    write_cifar_batch(tmp_path / "cifar-10-batches-py" / "test_batch", 5)
    write_cifar_batch(tmp_path / "cifar-100-python" / "train", 9, labels="fine_labels")
    write_cifar_batch(tmp_path / "cifar-100-python" / "test", 7, labels="fine_labels")
    write_image(tmp_path / "dtd" / "images" / "banded" / "a.png")
    return tmp_path


def lists(data, texts, home="benchmark_imglist/cifar10"):
    (data / home).mkdir(parents=True, exist_ok=True)
    for name, lines in texts.items():
        (data / home / f"{name}.txt").write_text("\n".join(lines) + "\n")


def test_each_cifar_is_near_ood_for_the_other(original):
    for name, near, sizes in (("openood-cifar10", "cifar100", (12, 5, 7)), ("openood-cifar100", "cifar10", (9, 7, 5))):
        one = suite(name)
        assert tuple(map(len, one.open_sets(original).values()))[:2] == sizes[:2]
        sets = one.open_ood(original)
        assert {part: len(images) for part, images in sets.items()} == {near: sizes[2], "textures": 1}
        assert one.missing(original) == ["tin", "mnist", "svhn", "places365"]
        assert one.unlisted(original) == ["train", "test", near, "textures"]


def test_image_lists_come_before_whole_sets(original):
    for number in range(4):
        write_image(original / "images_classic" / "cifar10" / f"{number}.png", seed=number)
        write_image(original / "images_classic" / "texture" / f"{number}.png", seed=number)
    lists(original, {"train_cifar10": ["cifar10/0.png 9", "cifar10/1.png 3"], "test_cifar10": ["cifar10/3.png 0"]})
    lists(original, {"test_texture": ["texture/2.png -1"], "test_tin": ["tin/0.png -1"]})
    lists(original, {"test_cifar100": ["cifar100/0.png -1"]})
    one = suite("openood-cifar10")
    train, test, *_ = one.open_sets(original).values()
    assert list(train.names) == ["cifar10/0.png", "cifar10/1.png"]
    assert (train.labels.tolist(), test.labels.tolist()) == ([9, 3], [0])
    sets = one.open_ood(original)
    assert list(sets["textures"].names) == ["texture/2.png"]
    assert len(sets["cifar100"]) == 7, "its list is there, but not the list's images"
    assert one.missing(original) == ["tin", "mnist", "svhn", "places365"]
    assert one.unlisted(original) == ["cifar100"]
    assert one.found(original)["textures"] == original / "benchmark_imglist" / "cifar10" / "test_texture.txt"


def test_imagenet_lists_refer_to_two_folders(tmp_path):
    write_image(tmp_path / "images_classic" / "texture" / "a.png")
    write_image(tmp_path / "images_largescale" / "ninco" / "a.png")
    write_image(tmp_path / "images_largescale" / "imagenet_1k" / "a.png")
    home = "benchmark_imglist/imagenet200"
    lists(tmp_path, {"test_textures": ["texture/a.png -1"], "test_ninco": ["ninco/a.png -1"]}, home)
    id_lists = {f"{part}_imagenet200": ["imagenet_1k/a.png 199"] for part in ("train", "test")}
    lists(tmp_path, id_lists, home)
    one = suite("openood-imagenet200")
    assert [one.open_sets(tmp_path)[part].labels.tolist() for part in ("train", "test")] == [[199], [199]]
    assert list(one.open_ood(tmp_path)) == ["ninco", "textures"]
    lists(tmp_path, {"test_imagenet200": ["imagenet_1k/a.png 200"]}, home)
    with pytest.raises(DataError, match=r"line 1: label 200 must lie between 0 and 199"):
        one.open_sets(tmp_path)


def test_a_suite_without_its_id_images_says_both_places(tmp_path):
    places = "cifar10/train_cifar10.txt with its images in images_classic or cifar-10-batches-py"
    with pytest.raises(DataError, match=f"has no benchmark_imglist/{places}, which the suite openood-cifar10 needs"):
        suite("openood-cifar10").open_sets(tmp_path)


# Real data --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.parametrize(("id_set", "near"), [("cifar10", "cifar100"), ("cifar100", "cifar10")])
def test_the_real_suites_with_the_authors_networks(data, tmp_path, id_set, near):
    name, weights, count = f"openood-{id_set}", f"densenet101-{id_set}", 30
    command = [sys.executable, "-m", "oodles", "bench", name, "--data", data, "--limit", count, "--published"]
    command += ["--checkpoint", data / "checkpoints" / f"{weights}.pth.tar"]
    command += ["--store", tmp_path / "store", "--out", tmp_path / "out", "--detector", "msp", "--detector", "energy"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "tin, mnist" in done.stderr
    assert "without OpenOOD's image lists" in done.stderr
    rows = json.loads((tmp_path / "out" / "rows.json").read_text())
    energy = {each["ood_set"]: each for each in rows if each["detector"] == "energy"}
    home = tmp_path / "store" / name / f"{weights}-{count}"
    parts = {part: Features.load(home / part) for part in ("test", near, "svhn", "textures", "places365")}
    confidence = {part: np.asarray(each.logits.double().logsumexp(dim=1)) for part, each in parts.items()}
    far = []
    for part in (near, "svhn", "textures", "places365"):
        theirs = scikit_learn(confidence["test"], confidence[part])
        ours = energy[part]
        assert [ours[key] for key in ("fpr95_ood", "auroc", "aupr_id", "aupr_ood")] == pytest.approx(theirs, abs=0.002)
        far += [ours["auroc"]] if part != near else []
    table = (tmp_path / "out" / "main.md").read_text()
    assert table.startswith(f"| | {near} | near | svhn | textures | places365 | far |")
    line = next(line for line in table.splitlines() if line.startswith("| energy"))
    assert f"{100 * fmean(far):.1f}" in line.split("|")[-2]
    assert f"({leaderboard(name, 'energy')['far']:.1f})" in line
    assert (tmp_path / "out" / "main-aupr.md").exists()
