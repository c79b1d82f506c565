"""Features that detector tests share, and the comparison of a detector with its slow reference."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from hypothesis import strategies as st
from reference import detectors as slow

from oodles.detectors import DICE, Detector, ReAct, detector_list, parse
from oodles.features import Features, Head
from oodles.functional import entropy
from oodles.testing import example_features

Pair = tuple[Features, Features]


def every_detector() -> list[Detector]:
    """The listed detectors, and others with settings that are not defaults."""
    others = [
        *("msp(3)", "energy(0.5)", "entropy(2)", "react(75)", "react(threshold=1.25)+max_logit", "dice(0)"),
        "react(threshold=1.5)+dice(0.35)+msp(2)",
        *("unit_pruning(0.5, by='activation')", "random_k(0.2, seed=11)+max_logit"),
    ]
    stages = DICE(p=0.6, shape=[ReAct(percentile=97), ReAct(percentile=80)], score=entropy)
    return [*detector_list(), stages, *map(parse, others)]


def without_bias(features: Features) -> Features:
    return Features(features.embedding, labels=features.labels, head=Head(features.head.weight))


def numpy_parts(features: Features) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Embeddings, weight and bias in float64."""
    head = features.head
    bias = torch.zeros(head.classes) if head.bias is None else head.bias
    return features.embedding.double().numpy(), head.weight.double().numpy(), bias.double().numpy()


# Detectors and their references -----------------------------------------------------------------


def active(rows: int, width: int, classes: int, seed: int) -> Features:
    """Features in which no unit is dead, so that every covariance has full rank."""
    features = example_features(rows, width, classes, seed)
    noise = torch.rand(features.embedding.shape, generator=torch.Generator().manual_seed(seed))
    return Features(features.embedding + 0.2 * noise, labels=features.labels, head=features.head)


@st.composite
def train_and_test(draw: st.DrawFn) -> Pair:
    """120 training rows and 9 test rows of the same head."""
    width, classes, seed = draw(st.integers(8, 16)), draw(st.integers(3, 6)), draw(st.integers(0, 10_000))
    train, test = active(120, width, classes, seed), active(9, width, classes, seed + 1)
    return train, Features(test.embedding, head=train.head)


def reference_rows(train: Features, test: Features) -> slow.Rows:
    """Both parts as the reference takes them: arrays in float64."""
    embedding, weight, bias = numpy_parts(train)
    return slow.Rows(
        h=embedding,
        z=train.logits.double().numpy(),
        y=train.column("labels").numpy(),
        weight=weight,
        bias=bias,
        test_h=test.embedding.double().numpy(),
        test_z=test.logits.double().numpy(),
    )


def assert_matches(text: str, reference: Callable[[slow.Rows], np.ndarray], pair: Pair) -> None:
    """The detector gives the scores of its reference."""
    train, test = pair
    got = parse(text).fit(train).score(test).double().numpy()
    want = reference(reference_rows(train, test))
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4 * max(1, float(np.abs(want).max())))


def labelled(
    counts: Sequence[int], width: int, *, seed: int = 0, spread: float = 3.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """This many rows of each class about its own centre, in random order; float64."""
    draw = np.random.default_rng(seed)
    labels = draw.permutation(np.repeat(np.arange(len(counts)), counts))
    rows = spread * draw.normal(size=(len(counts), width))[labels] + draw.normal(size=(len(labels), width))
    return torch.from_numpy(rows), torch.from_numpy(labels)


# Awkward rows -----------------------------------------------------------------------------------


def awkward() -> dict[str, Features]:
    """Rows on which a careless formula divides by zero, overflows or finds nothing to learn from."""
    plain = example_features(60, 10, 4)
    head, labels = plain.head, plain.labels
    dead = plain.embedding.clone()
    dead[:, :4] = 0
    once = torch.zeros_like(labels)
    once[0], once[1] = 1, 2
    never = Head(head.weight.clone(), torch.tensor([0.0, 0.0, 0.0, -1e3]))
    equal = Head(torch.zeros_like(head.weight), torch.zeros(4))
    return {
        "dead units": Features(dead, labels=labels, head=head),
        "duplicate rows": Features(plain.embedding[:10].repeat(6, 1), labels=labels[:10].repeat(6), head=head),
        "classes of one row": Features(plain.embedding, labels=once, head=head),
        "a class never predicted": Features(plain.embedding, labels=labels, head=never),
        "equal logits": Features(plain.embedding, labels=labels, head=equal),
        "logits of ten thousand": Features(plain.embedding * 1e4, labels=labels, head=head),
        "a row of zeros": Features(torch.cat([plain.embedding[:59], torch.zeros(1, 10)]), labels=labels, head=head),
    }
