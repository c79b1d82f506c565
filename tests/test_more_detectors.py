import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import detectors as slow

from oodles.detectors import Detector, detector_list, parse
from oodles.detectors.parse import WHOLE_KINDS
from oodles.detectors.statistics import ClassMeans, RowSample
from oodles.errors import ArgumentError, OodlesError, ShapeError
from oodles.features import Features, Head
from oodles.testing import check_detector, example_features

TWINS = {
    "ash_p(70)": lambda rows: slow.ash_p(rows, 70),
    "ash_b(70)": lambda rows: slow.ash_b(rows, 70),
    "ash_s(70)": lambda rows: slow.ash_s(rows, 70),
    "scale(60)": lambda rows: slow.scale(rows, 60),
    "lts(80)": lambda rows: slow.lts(rows, 80),
    "vra(40, 90)": lambda rows: slow.vra(rows, 40, 90),
    "gen": slow.gen,
    "gen(gamma=0.5, top=3)": lambda rows: slow.gen(rows, 0.5, 3),
    "doctor": slow.doctor,
    "klmatching": slow.klmatching,
    "tempscale": slow.tempscale,
    "openmax(tail=8, top=3)": lambda rows: slow.openmax(rows, 8, 3),
    "gradnorm": slow.gradnorm,
    "gradnorm(2)": lambda rows: slow.gradnorm(rows, 2),
    "graduncertainty": slow.graduncertainty,
    "exgrad": slow.exgrad,
    "rmds": slow.rmds,
    "mahalanobispp": slow.mahalanobispp,
    "gaussianmixture": slow.gaussianmixture,
    "knn(5)": lambda rows: slow.knn(rows, 5),
    "nnguide(5)": lambda rows: slow.nnguide(rows, 5),
    "she": slow.she,
    "residual(6)": lambda rows: slow.residual(rows, 6),
    "vim(6)": lambda rows: slow.vim(rows, 6),
    "neco(4)": lambda rows: slow.neco(rows, 4),
    "fdbd": slow.fdbd,
    "nci": slow.nci,
}
NAMED = ["ash_p", "ash_b", "ash_s", "scale", "vra", "lts", "gen", "doctor"]
WITHOUT_NETWORK = [
    kind.__name__.lower() for kind in WHOLE_KINDS if kind.__name__ not in ("ODIN", "GODIN", "Combination")
]


def rows_of(train: Features, test: Features) -> slow.Rows:
    head = train.head
    assert head is not None
    assert head.bias is not None
    columns = (
        train.embedding,
        train.logits,
        train.column("labels"),
        head.weight,
        head.bias,
        test.embedding,
        test.logits,
    )
    return slow.Rows(*(column.double().numpy() if column.is_floating_point() else column.numpy() for column in columns))


def living(rows: int, width: int, classes: int, seed: int) -> Features:
    """Features without a silent unit, so that every covariance has full rank."""
    features = example_features(rows, width, classes, seed)
    noise = torch.rand(features.embedding.shape, generator=torch.Generator().manual_seed(seed))
    return Features(features.embedding + 0.2 * noise, labels=features.labels, head=features.head)


@pytest.mark.parametrize("text", TWINS)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000), width=st.integers(8, 16), classes=st.integers(3, 6))
def test_scores_are_those_of_the_slow_twin(text: str, seed: int, width: int, classes: int) -> None:
    train, test = living(120, width, classes, seed), living(9, width, classes, seed + 1)
    test = Features(test.embedding, head=train.head)
    got = parse(text).fit(train).score(test).double().numpy()
    want = TWINS[text](rows_of(train, test))
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4 * max(1, float(np.abs(want).max())))


@pytest.mark.parametrize(
    "text", ["react(97)+scale(65)+dice(0.05)", "vra(50, 90)+ash_s(80)+msp", "lts(90)+dice(0.5)+gen"]
)
def test_shapes_chain_with_any_sparsifier_and_score(text: str) -> None:
    check_detector(parse(text))


def test_a_pure_rescale_needs_no_second_product() -> None:
    features = example_features()
    head = features.head
    assert head is not None
    factor = parse("scale(85)").fit(features).shapes[0](features.embedding) / features.embedding.clamp(min=1e-9)
    bias = head.bias if head.bias is not None else torch.zeros(head.classes)
    scaled = factor.amax(dim=1, keepdim=True) * (features.logits - bias) + bias
    torch.testing.assert_close(parse("scale(85)").fit(features).score(features), torch.logsumexp(scaled, dim=1))


@pytest.mark.parametrize("text", ["gradnorm", "graduncertainty", "exgrad"])
def test_closed_forms_are_autograd_s(text: str) -> None:
    features = example_features(6)
    head = features.head
    assert head is not None
    scores = parse(text).score(features)
    for row in range(6):
        weight = head.weight.double().clone().requires_grad_()
        logits = weight @ features.embedding[row].double() + (head.bias.double() if head.bias is not None else 0)
        log_probability, classes = torch.log_softmax(logits, dim=0), len(logits)
        if text == "gradnorm":
            (gradient,) = torch.autograd.grad(-log_probability.mean(), weight)
            want = gradient.abs().sum()
        elif text == "graduncertainty":
            (gradient,) = torch.autograd.grad(-log_probability.sum(), weight)
            want = gradient.square().sum()
        else:
            want = torch.zeros((), dtype=torch.float64)
            for y in range(classes):
                (gradient,) = torch.autograd.grad(-log_probability[y], weight, retain_graph=True)
                want = want - log_probability[y].exp().detach() * gradient.abs().sum()
        torch.testing.assert_close(scores[row].double(), want.detach(), rtol=1e-4, atol=1e-5)


# Numbers that are not nice ----------------------------------------------------------------------


def awkward() -> dict[str, Features]:
    plain = example_features(60, 10, 4)
    head = plain.head
    assert head is not None
    labels = plain.column("labels")
    dead = plain.embedding.clone()
    dead[:, :4] = 0
    once = labels.clone()
    once[:] = 0
    once[0], once[1] = 1, 2
    never = Head(head.weight.clone(), torch.tensor([0.0, 0.0, 0.0, -1e3]))
    equal = Head(torch.zeros_like(head.weight), torch.zeros(4))
    return {
        "dead units": Features(dead, labels=labels, head=head),
        "rows twice": Features(plain.embedding[:10].repeat(6, 1), labels=labels[:10].repeat(6), head=head),
        "classes of one row": Features(plain.embedding, labels=once, head=head),
        "a class never predicted": Features(plain.embedding, labels=labels, head=never),
        "equal logits": Features(plain.embedding, labels=labels, head=equal),
        "logits of ten thousand": Features(plain.embedding * 1e4, labels=labels, head=head),
        "a row of zeros": Features(torch.cat([plain.embedding[:59], torch.zeros(1, 10)]), labels=labels, head=head),
    }


@pytest.mark.parametrize("case", awkward())
@pytest.mark.parametrize("text", [*NAMED, *WITHOUT_NETWORK, "react(97)+scale(65)+dice(0.05)"])
def test_awkward_rows_give_finite_scores_or_a_named_error(text: str, case: str) -> None:
    features = awkward()[case]
    try:
        scores = parse(text).fit(features).score(features)
    except OodlesError:
        return
    assert torch.isfinite(scores).all()


def test_neighbours_come_from_a_sample_that_order_does_not_change() -> None:
    rows = torch.rand(500, 7)
    whole, parts = RowSample(50), [RowSample(50), RowSample(50)]
    whole.add(rows)
    for sample, some in zip(parts, (rows[300:], rows[:300]), strict=True):
        for batch in torch.split(some.flip(0), 37):
            sample.add(batch)
    parts[0].merge(parts[1])
    assert torch.equal(whole.rows(), parts[0].rows())
    assert len(whole.rows()) == 50
    means = [float(RowSample.rows(_sampled(rows + shift, 100)).mean()) - shift for shift in (0.0, 1.0, 2.0)]
    assert all(abs(mean - 0.5) < 0.1 for mean in means), "the choice has nothing to do with the values' size"


def _sampled(rows: torch.Tensor, limit: int) -> RowSample:
    sample = RowSample(limit)
    sample.add(rows)
    return sample


def test_class_means_merge() -> None:
    rows, labels = torch.rand(20, 3), torch.arange(20) % 4
    whole, first, second = ClassMeans(), ClassMeans(), ClassMeans()
    whole.add(rows, labels, 5)
    first.add(rows[:7], labels[:7], 5)
    second.add(rows[7:], labels[7:], 5)
    second.merge(first)
    torch.testing.assert_close(second.values(), whole.values())
    assert whole.counts.tolist() == [5, 5, 5, 5, 0]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("knn(0)", "k=0"),
        ("knn(20, bank=10)", "bank=10"),
        ("ash_s(0.9)", "percent"),
        ("vra(90, 10)", "percentiles"),
        ("openmax(tail=1)", "tail=1"),
        ("residual(0)", "dimension=0"),
        ("gradnorm(0)", "temperature=0"),
        ("knn+energy", "stands alone"),
    ],
)
def test_settings_that_make_no_sense_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        parse(text)


def test_more_neighbours_than_rows() -> None:
    features = example_features(6)
    detector = parse("knn").fit(features)
    assert detector.remarks == ("KNN(k=10, bank=10000): 6 rows to keep, so k is 6",)
    assert torch.equal(detector.score(features), parse("knn(6)").fit(features).score(features))


def test_openmax_without_a_row_labelled_right() -> None:
    features = example_features(20)
    wrong = (features.logits.argmax(dim=1) + 1) % features.classes
    detector = parse("openmax").fit(Features(features.embedding, labels=wrong, head=features.head))
    assert "labelled right" in detector.remarks[0]
    assert torch.isfinite(detector.score(features)).all()


def test_a_subspace_as_large_as_the_embedding_is_refused() -> None:
    with pytest.raises(ArgumentError, match="leaves nothing outside"):
        parse("vim(24)").fit(example_features())


@pytest.mark.parametrize("text", ["mahalanobis", "she", "tempscale", "openmax", "rmds"])
def test_labels_are_asked_for(text: str) -> None:
    features = example_features()
    with pytest.raises(ShapeError, match="labels"):
        parse(text).fit(Features(features.embedding, head=features.head))


def test_trio_is_its_stages() -> None:
    from oodles.detectors.logit import Trio

    features = example_features()
    scores = Trio().fit(features).score(features)
    chain: Detector = parse("react(97)+scale(65)+dice(0.05)+energy")
    assert torch.equal(scores, chain.fit(features).score(features))


# Real features -----------------------------------------------------------------------------------


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_float32_agrees_with_float64_on_the_papers_networks(data, name: str) -> None:
    from oodles.bench.datasets import ImageLoader
    from oodles.bench.suites import SUITES
    from oodles.extraction import extract
    from oodles.models import build_model, load_checkpoint

    suite = SUITES[name]
    model = build_model(suite.model)
    load_checkpoint(model, data / "checkpoints" / f"densenet101-{name}.pth.tar")
    train, test = (
        extract(model, ImageLoader(part.sample(rows), suite.transform))
        for part, rows in zip(suite.open_id(data), (700, 100), strict=True)
    )
    for detector in detector_list():
        detector.fit(train)
        narrow = detector.score(test).double()
        wide = copy.deepcopy(detector).double().score(test.to(dtype=torch.float64))
        gap = float((narrow - wide).abs().max()) / max(1.0, float(wide.abs().max()))
        assert gap <= 1e-4, f"{detector.spec}: off by {gap:.1e}"
