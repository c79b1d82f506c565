"""Every kind of head that is found: embedding, logits and weights are those of the model by hand."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import networks
from support.networks import CLASSES, WIDTH, batched, one_thread, pictures, seeded  # noqa: F401
from torch import nn
from torch.nn import functional as F

from oodles.data.inputs import Inputs
from oodles.detectors import Energy
from oodles.errors import HeadError
from oodles.network.extraction import extract
from oodles.network.head import locate_head
from oodles.network.taps import eval_mode

ROWS, BATCH = 20, 7


def located(model, inputs=None):
    with eval_mode(model):
        return locate_head(model, Inputs((pictures(6) if inputs is None else inputs,)), None)


def by_hand(model, images):
    with eval_mode(model):
        return model.hidden(images), model(images)


# Cosine heads -----------------------------------------------------------------------------------


def unit(values):
    return values / values.norm(dim=-1, keepdim=True)


COSINES = {
    "a product": lambda m, h: F.linear(F.normalize(h), F.normalize(m.fc.weight)),
    "a product, scaled": lambda m, h: 10 * F.linear(F.normalize(h), F.normalize(m.fc.weight)),
    "a product, scaled embedding": lambda m, h: F.linear(10 * F.normalize(h), F.normalize(m.fc.weight)),
    "a product, scaled weight": lambda m, h: F.linear(F.normalize(h), 10 * F.normalize(m.fc.weight)),
    "a product with a bias": lambda m, h: 10 * F.linear(F.normalize(h), F.normalize(m.fc.weight)) + m.fc.bias,
    "matmul": lambda m, h: 64 * unit(h) @ unit(m.fc.weight).T,
    "cosine_similarity": lambda m, h: F.cosine_similarity(h[:, None], m.fc.weight[None], dim=2),
    "cosine_similarity, scaled": lambda m, h: F.cosine_similarity(h[:, None], m.fc.weight[None], dim=2) / 0.07,
    "cosine_similarity, the other order": lambda m, h: 9 * F.cosine_similarity(m.fc.weight[None], h[:, None], dim=-1),
    "cosine_similarity of two dimensions": lambda m, h: 9 * F.cosine_similarity(h[:, None], m.fc.weight, dim=2),
    "cosine_similarity by keywords": lambda m, h: F.cosine_similarity(x1=h[:, None], x2=m.fc.weight[None], dim=2),
    "divided afterwards": lambda m, h: h @ m.fc.weight.T / (h.norm(dim=1, keepdim=True) * m.fc.weight.norm(dim=1)),
    "divided afterwards, scaled": lambda m, h: 7 * F.linear(h, unit(m.fc.weight)) / h.norm(dim=1)[:, None],
    "einsum": lambda m, h: 10 * torch.einsum("nd,cd->nc", unit(h), unit(m.fc.weight)),
    "einsum, transposed": lambda m, h: 10 * torch.einsum("b i, i k -> b k", unit(h), unit(m.fc.weight).T),
}


@pytest.mark.filterwarnings("ignore:.* may be multi-label")
@pytest.mark.parametrize("make", [networks.Headed, networks.LinearEmbedding])
@pytest.mark.parametrize("form", COSINES)
def test_cosine_heads_are_found_however_they_are_written(form, make):
    model = seeded(lambda: make(COSINES[form]))
    features = extract(model, batched(ROWS, BATCH))
    hidden, output = by_hand(model, pictures(ROWS))
    torch.testing.assert_close(unit(features.embedding), unit(hidden), rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(unit(features.head.weight), unit(model.fc.weight.detach()), rtol=1e-5, atol=2e-6)
    lengths = features.embedding.norm(dim=1)
    torch.testing.assert_close(lengths, lengths[:1].expand(ROWS), msg="no length of the embedding is left")
    torch.testing.assert_close(features.logits, output, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(features.head(features.embedding), output, rtol=1e-4, atol=2e-5)


def test_a_head_divided_by_norms_is_not_guessed_from_one_repeated_input():
    """Every scale per class would fit, and so would a plain head with a scale."""

    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.fc = nn.Embedding(50, WIDTH), nn.Linear(WIDTH, CLASSES, bias=False)

        def forward(self, tokens):
            return 10 * self.fc(self.table(tokens).mean(dim=1))

    model, tokens = seeded(Tokens), torch.arange(18).view(3, 6)
    assert located(model, tokens).normalised == ""
    with pytest.raises(HeadError, match="no linear operation produces the logits"):
        located(model, torch.zeros(1, 6, dtype=torch.long))


@pytest.mark.parametrize("scale", [0.5, 8.0, -2.0])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("update", [True, False])
def test_a_low_rank_update_is_part_of_the_head(scale, bias, update):
    model = seeded(networks.Net)
    model.fc = layer = seeded(lambda: networks.LowRank(scale, bias=bias, update=update), seed=1)
    features = extract(model, batched(ROWS, BATCH))
    hidden, output = by_hand(model, pictures(ROWS))
    torch.testing.assert_close(features.embedding, hidden, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(features.logits, output, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        weight = layer.base.weight + scale * layer.up.weight @ layer.down.weight
    torch.testing.assert_close(features.head.weight, weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(features.head.full_bias(), layer.base.bias.detach() if bias else torch.zeros(CLASSES))
    if not update:
        assert torch.equal(features.head.weight, layer.base.weight), "before training, the update is zero"


# Sums of heads ----------------------------------------------------------------------------------


class Ensemble(nn.Module):
    """Several networks of different widths whose logits are added with weights."""

    def __init__(self, factors, *, shared=False):
        super().__init__()
        self.factors, self.shared = factors, shared
        self.necks = nn.ModuleList([nn.Linear(12, 3 + place) for place in range(len(factors))])
        self.heads = nn.ModuleList(
            [nn.Linear(3 if shared else 3 + place, CLASSES, bias=place != 1) for place in range(len(factors))]
        )

    def hidden(self, rows):
        parts = [neck(rows).tanh() for neck in self.necks]
        return parts[0] if self.shared else torch.cat(parts, dim=1)

    def forward(self, rows):
        parts = [neck(rows).tanh() for neck in self.necks]
        inputs = [parts[0]] * len(parts) if self.shared else parts
        return sum(factor * head(part) for factor, head, part in zip(self.factors, self.heads, inputs, strict=True))


@pytest.mark.parametrize("factors", [(0.5, 0.5), (0.2, 0.3, 0.5), (1.0, -2.0, 0.7, 3.0)])
@pytest.mark.parametrize("shared", [False, True])
def test_a_weighted_sum_of_heads_is_one_head_on_their_embeddings_side_by_side(factors, shared):
    model, rows = seeded(lambda: Ensemble(factors, shared=shared)), torch.randn(20, 12)
    features = extract(model, rows.split(BATCH))
    hidden, output = by_hand(model, rows)
    torch.testing.assert_close(features.embedding, hidden, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(features.logits, output, rtol=1e-5, atol=1e-6)
    parts = [factor * head.weight.detach() for factor, head in zip(factors, model.heads, strict=True)]
    weight = torch.stack(parts).sum(dim=0) if shared else torch.cat(parts, dim=1)
    torch.testing.assert_close(features.head.weight, weight, rtol=1e-4, atol=1e-5)
    bias = sum(
        factor * head.bias.detach() for factor, head in zip(factors, model.heads, strict=True) if head.bias is not None
    )
    torch.testing.assert_close(features.head.bias, bias, rtol=1e-4, atol=1e-5)


def test_a_model_that_mixes_the_inputs_of_a_batch_is_refused():
    """The score of an input would depend on those that happen to be scored with it."""

    class BatchStatistics(networks.Net):
        def forward(self, images):
            hidden = self.hidden(images)
            return self.fc(hidden - hidden.mean(dim=0))

    with pytest.raises(HeadError, match=r"mixes the inputs of a batch: .*batch_first=True"):
        located(seeded(BatchStatistics))


def test_the_largest_logit_over_tokens_is_no_linear_head():
    class Largest(networks.Transformer):
        def forward(self, images):
            return self.head(self.encoder(self.patch(images).flatten(2).transpose(1, 2))).amax(dim=1)

    with pytest.raises(HeadError, match="no linear operation produces the logits"):
        located(seeded(Largest))


# Outputs of several tensors ---------------------------------------------------------------------


def distances(model, embedding):
    return -torch.cdist(embedding, model.fc.weight)


def squared_distances(model, embedding):
    products = embedding @ model.fc.weight.T
    return 2 * products - embedding.pow(2).sum(dim=1, keepdim=True) - model.fc.weight.pow(2).sum(dim=1)


def with_probabilities(model, embedding):
    logits = model.fc(embedding)
    return logits, logits.softmax(dim=1)


FOUND = {
    "(embedding, logits)": lambda m, h: (h, m.fc(h)),
    "(logits, embedding)": lambda m, h: (m.fc(h), h),
    "(normalised embedding, logits)": lambda m, h: (F.normalize(h), m.fc(h)),
    "a dict of both": lambda m, h: {"features": h, "scores": m.fc(h)},
    "(logits, probabilities)": with_probabilities,
    "(probabilities, logits)": lambda m, h: with_probabilities(m, h)[::-1],
    "(logits, probabilities) by two calls": lambda m, h: (m.fc(h), m.fc(h).softmax(dim=1)),
    "(logits, maps, loss)": lambda m, h: (m.fc(h), h[:, :, None, None].expand(-1, -1, 2, 2), h.sum()),
}


@pytest.mark.parametrize("make", [networks.Headed, networks.LinearEmbedding])
@pytest.mark.parametrize("form", FOUND)
def test_the_logits_are_found_among_several_outputs(form, make):
    model = seeded(lambda: make(FOUND[form]))
    features = extract(model, batched(ROWS, BATCH))
    hidden, _ = by_hand(model, pictures(ROWS))
    torch.testing.assert_close(features.embedding, hidden, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(features.logits, model.fc(hidden), rtol=1e-5, atol=1e-6)
    assert torch.equal(features.head.weight, model.fc.weight)


@pytest.mark.parametrize("make", [networks.Headed, networks.LinearEmbedding])
@pytest.mark.parametrize("function", [distances, squared_distances])
@pytest.mark.parametrize("swapped", [False, True])
def test_an_embedding_is_never_taken_for_the_logits(function, swapped, make):
    """The embedding may itself be the output of a linear layer, and then looks like logits."""

    def both(model, embedding):
        parts = embedding, function(model, embedding)
        return parts[::-1] if swapped else parts

    with pytest.raises(HeadError, match=r"prototype head|no linear operation produces the logits"):
        extract(seeded(lambda: make(both)), batched(ROWS, BATCH))


def test_one_layer_used_for_two_outputs_is_refused():
    model = seeded(lambda: networks.Headed(lambda m, h: (m.fc(h), m.fc(2 * h))))
    with pytest.raises(HeadError, match=r"several tensors, .* \(fc, fc\); return the logits alone"):
        extract(model, batched(ROWS, BATCH))


@pytest.mark.parametrize("returned", [0, 1])
def test_a_layer_that_runs_twice_is_the_head_in_the_run_that_gives_the_logits(returned):
    model = seeded(lambda: networks.Headed(lambda m, h: (m.fc(h), m.fc(h.flip(1)))[returned]))
    features = extract(model, batched(ROWS, BATCH))
    hidden, output = by_hand(model, pictures(ROWS))
    torch.testing.assert_close(features.embedding, hidden.flip(1) if returned else hidden, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(features.logits, output, rtol=1e-5, atol=1e-6)


def test_a_single_sigmoid_is_two_exclusive_classes():
    model = seeded(lambda: networks.Headed(lambda m, h: m.fc(h).sigmoid(), 1))
    with pytest.warns(UserWarning, match="Headed") as warned:
        features = extract(model, [pictures(ROWS)])
    assert [str(each.message).partition(";")[0] for each in warned] == [
        "Headed returns probabilities",
        "Headed has a single logit z, treated as two classes with logits 0 and z",
    ]
    _, output = by_hand(model, pictures(ROWS))
    assert not features.multilabel
    torch.testing.assert_close(features.logits.softmax(dim=1)[:, 1:], output, rtol=1e-5, atol=1e-6)
    assert Energy().score(features).std() > 0


# Random networks --------------------------------------------------------------------------------


class Random(nn.Module):
    def __init__(self, seed, width, classes, bias, activation, answer):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.neck, self.fc = nn.Linear(5, width), nn.Linear(width, classes, bias=bias)
        self.activation, self.answer = activation, answer

    def hidden(self, rows):
        return self.activation(self.neck(rows))

    def forward(self, rows):
        return self.answer(self, self.hidden(rows))


AFFINE = {
    "plain": lambda m, h: m.fc(h),
    "scaled": lambda m, h: m.fc(h) / 1.7,
    "offset": lambda m, h: m.fc(h) + torch.linspace(-1, 1, m.fc.out_features),
    "with its embedding": lambda m, h: (h, m.fc(h)),
    "softmax": lambda m, h: m.fc(h).softmax(dim=1),
    "sigmoid": lambda m, h: m.fc(h).sigmoid(),
    "cosine": lambda m, h: 5 * F.linear(F.normalize(h), F.normalize(m.fc.weight)),
    "cosine, divided": lambda m, h: h @ m.fc.weight.T / h.norm(dim=1, keepdim=True).clamp(min=1e-8),
}
CURVED = {
    "tanh": lambda m, h: 3 * m.fc(h).tanh(),
    "softplus": lambda m, h: F.softplus(m.fc(h)),
    "squared": lambda m, h: m.fc(h).square(),
    "distances": distances,
    "squared distances": squared_distances,
    "divided by one of them": lambda m, h: m.fc(h) / (1 + m.fc(h)[:, :1].abs()),
}
PIECEWISE = {
    "relu": lambda m, h: m.fc(h).relu(),
    "clamped": lambda m, h: m.fc(h).clamp(-0.5, 0.5),
    "largest of two": lambda m, h: torch.maximum(m.fc(h), m.fc(-h)),
}
# without a ReLU, since an embedding of so few units would often be zero, and has no cosine
ACTIVATIONS = {"none": lambda values: values, "gelu": F.gelu, "tanh": torch.tanh}
drawn = {
    "seed": st.integers(0, 10_000),
    "width": st.integers(2, 7),
    "classes": st.integers(2, 6),
    "bias": st.booleans(),
    "activation": st.sampled_from(list(ACTIVATIONS)),
    "rows": st.integers(1, 9),
}


def rows_of(count, seed):
    return torch.randn(count, 5, generator=torch.Generator().manual_seed(seed))


@pytest.mark.filterwarnings("ignore:.* may be multi-label")
@settings(max_examples=60, deadline=None)
@given(**drawn, form=st.sampled_from(list(AFFINE)))
def test_the_head_of_a_random_network_is_found(seed, width, classes, bias, activation, rows, form):
    model = Random(seed, width, classes, bias, ACTIVATIONS[activation], AFFINE[form]).eval()
    batches = [rows_of(rows, seed), rows_of(12, seed + 1)]
    with torch.no_grad():
        hidden = model.hidden(torch.cat(batches))
        output = model(torch.cat(batches))
        logits = {"softmax": model.fc, "sigmoid": model.fc}.get(form, lambda _: None)(hidden)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*returns probabilities")
        features = extract(model, batches)
    wanted = output[1] if form == "with its embedding" else output if logits is None else logits
    torch.testing.assert_close(features.logits, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(features.head(features.embedding), wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(F.normalize(features.embedding), F.normalize(hidden), rtol=1e-4, atol=1e-4)
    if "cosine" not in form:
        torch.testing.assert_close(features.embedding, hidden, rtol=1e-4, atol=1e-5)
    assert features.multilabel is (form == "sigmoid")


@settings(max_examples=60, deadline=None)
@given(**drawn, form=st.sampled_from(list(CURVED)))
def test_a_random_network_without_a_linear_head_is_never_given_one(seed, width, classes, bias, activation, rows, form):
    model = Random(seed, width, classes, bias, ACTIVATIONS[activation], CURVED[form]).eval()
    with pytest.raises(HeadError, match="Random"):
        extract(model, [rows_of(rows, seed), rows_of(40, seed + 1)])
    assert extract(model, [rows_of(rows, seed)], head=False).head is None


@settings(max_examples=60, deadline=None)
@given(**drawn, form=st.sampled_from(list(PIECEWISE)))
def test_a_head_that_is_linear_only_for_some_inputs_is_refused_when_others_come(
    seed, width, classes, bias, activation, rows, form
):
    """With few classes, all of the first rows may be on the linear side of a ReLU; then the first other one is not."""
    model = Random(seed, width, classes, bias, ACTIVATIONS[activation], PIECEWISE[form]).eval()
    batches = [rows_of(rows, seed), rows_of(40, seed + 1)]
    try:
        features = extract(model, batches)
    except HeadError:
        return
    with torch.no_grad():
        hidden, output = model.hidden(torch.cat(batches)), model(torch.cat(batches))
        linear = (model.fc(hidden), model.fc(-hidden))
    torch.testing.assert_close(features.logits, output, rtol=1e-4, atol=1e-4)
    assert any(torch.allclose(side, output, rtol=1e-3, atol=1e-4) for side in linear), "all rows are on one side"
    torch.testing.assert_close(features.embedding.abs(), hidden.abs(), rtol=1e-4, atol=1e-5)
