"""``ForwardPass``: what is refused or reported about logits when no head shows what they are."""

import warnings

import pytest
import torch
from support import networks
from support.networks import CLASSES, batched, one_thread, pictures, seeded  # noqa: F401
from torch.nn import functional as F

from oodles.errors import HeadError
from oodles.network.extraction import extract


def headed(answer, classes=CLASSES):
    return seeded(lambda: networks.Headed(answer, classes))


def test_one_number_from_0_to_1_may_be_a_probability_and_is_refused_without_a_head():
    model = headed(lambda m, h: m.fc(h).sigmoid(), 1)
    with pytest.raises(HeadError, match="Headed returns one number from 0 to 1 per input"):
        extract(model, [pictures(6)], head=False)


def test_one_number_of_any_other_size_is_a_logit():
    model = headed(lambda m, h: 1.5 + m.fc(h), 1)
    with pytest.warns(UserWarning, match="single logit z"):
        features = extract(model, [pictures(6)], head=False)
    with torch.no_grad():
        torch.testing.assert_close(features.logits, F.pad(model.eval()(pictures(6)), (1, 0)), rtol=1e-5, atol=1e-6)


def test_an_optional_head_that_is_not_there_leaves_the_logits_and_the_loader_is_read_once():
    model, batches, seen = seeded(networks.Prototypes), batched(20, 5), []
    with pytest.warns(UserWarning, match="no linear head was found: Prototypes has a prototype"):
        features = extract(model, iter(batches), optional_head=True, on_batch=lambda *given: seen.append(given))
    assert features.head is None
    assert torch.equal(features.logits, extract(model, batches, head=False).logits)
    assert [torch.equal(*inputs.args, batches[number][0]) for number, inputs in seen] == [True] * 4
    assert extract(seeded(networks.Net), iter(batches), optional_head=True).head is not None


def test_probabilities_used_as_logits_are_reported_once():
    """An average of several softmaxes has no logits, and energy and max_logit of probabilities mean little."""
    model = headed(lambda m, h: (m.fc(h).softmax(dim=1) + m.fc(-h).softmax(dim=1)) / 2)
    with pytest.warns(UserWarning, match="Headed returns probabilities, used as if they were logits") as warned:
        extract(model, batched(20, 5), head=False)
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        extract(headed(lambda m, h: m.fc(h).sigmoid()), [pictures(6)], head=False)
        extract(headed(lambda m, h: m.fc(h).log_softmax(dim=1)), [pictures(6)], head=False)
