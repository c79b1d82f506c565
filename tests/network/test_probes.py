"""What is said about a network that does not accept a batch: the fact, and the remedy that fits it."""

import re

import pytest
import torch
from support import networks
from support.networks import CLASSES, one_thread, pictures, seeded  # noqa: F401
from torch import nn

from oodles.data.inputs import Inputs
from oodles.errors import DataError, HeadError
from oodles.network.extraction import extract
from oodles.network.probes import PROBE_ROWS, first_pass
from oodles.network.taps import eval_mode

FLAT = nn.Sequential(nn.Flatten(), nn.Linear(48, CLASSES))


@pytest.mark.parametrize(
    ("model", "batch", "said"),
    [
        (FLAT, pictures(4), "Sequential does not accept images (float32 (4, 3, 8, 8)) (mat1 and mat2"),
        (FLAT, pictures(4), "(4x192 and 48x5)); are these the inputs it was trained on?"),
        (networks.Net().double(), pictures(4), "its weights are torch.float64; convert the inputs or"),
        (networks.Net(), pictures(4).double(), "its weights are torch.float32; convert the inputs or"),
        (networks.Net(), pictures(4).mul(99).to(torch.uint8), "if it takes images, convert them to floating point"),
        (FLAT, torch.ones(4, 48, dtype=torch.uint8), "if it takes images, convert them to floating point"),
        (nn.Bilinear(4, 4, 2), pictures(4), "positional argument: 'input2'); give the batches that its forward takes"),
        (
            nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, CLASSES)),
            torch.tensor([[1, 2, 9]]),
            "(index out of range in self); are these the inputs it was trained on?",
        ),
    ],
)
def test_a_batch_that_the_network_rejects_is_described_with_the_remedy(model, batch, said):
    with pytest.raises(DataError, match=re.escape(said)) as raised:
        extract(model, [batch])
    assert "\n" not in str(raised.value)
    assert raised.value.__cause__ is not None, "the network's own error is kept for the traceback"


@pytest.mark.parametrize("model", [nn.Module(), nn.ModuleList([nn.Linear(3, 3)])])
def test_a_module_without_forward_is_named(model):
    name = type(model).__name__
    with pytest.raises(HeadError, match=f"{name} has no forward method.*; give the whole classifier"):
        extract(model, [pictures(4)])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("body.conv1.weight", float("nan")),
        ("body.bn1.running_var", float("nan")),
        ("fc.bias", float("nan")),
        ("fc.bias", float("inf")),
    ],
)
def test_weights_that_are_not_finite_are_named(name, value):
    model = seeded(networks.Net)
    with torch.no_grad():
        model.state_dict()[name].view(-1)[0] = value
    with pytest.raises(HeadError, match=rf"its weights {re.escape(name)} are not finite"):
        extract(model, [pictures(4)])


def test_logits_that_are_not_finite_with_sound_weights_point_to_the_inputs():
    class Roots(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(192, CLASSES)

        def forward(self, images):
            return self.fc(images.flatten(1).sqrt())

    assert extract(seeded(Roots), [pictures(4).abs()]).head is not None, "rows of the batch are used, as noise is NaN"
    with pytest.raises(HeadError, match=r"NaN or infinite logits .*; check its first inputs"):
        extract(seeded(Roots), [pictures(4)])


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_the_search_uses_a_few_rows_of_the_right_kinds_whatever_the_batch(rows):
    """Noise in place of images, so that the same head is found for every batch; real token ids, since noise is none."""
    seen = []

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.table = nn.Linear(12, CLASSES), nn.Embedding(30, 12)

        def forward(self, images, tokens, scale):
            seen.append((images.clone(), tokens.clone(), scale))
            return self.fc(images.flatten(1) + scale * self.table(tokens).mean(dim=1))

    images, tokens = torch.rand(rows, 3, 2, 2), 1 - torch.arange(rows)[:, None].clamp(max=1).expand(-1, 2)
    with eval_mode(model := seeded(Both)):
        probe, check, outputs, recorder = first_pass(model, Inputs((images, tokens, 2.0)))
    (noise, ids, scale) = seen[0]
    assert len(probe) == len(noise) == PROBE_ROWS
    assert len(check) == PROBE_ROWS - 1
    assert scale == 2.0
    assert ids[:, 0].tolist() == [int(row % rows == 0) for row in range(PROBE_ROWS)], "a mask stays as it is"
    assert not any(torch.equal(row, other) for row in noise for other in images)
    assert [tuple(output.shape) for output in outputs.values()] == [(PROBE_ROWS, CLASSES)]
    assert recorder.calls[-1].module == "fc"


@pytest.mark.parametrize("rows", [1, 2, 3, 9])
def test_token_ids_of_repeated_rows_become_smaller_so_that_rows_differ(rows):
    seen = []

    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.fc = nn.Embedding(100, 6), nn.Linear(6, CLASSES)

        def forward(self, ids, mask, lengths):
            seen.append((ids.clone(), mask.clone(), lengths.clone()))
            return self.fc((self.table(ids) * mask[..., None]).sum(dim=1)) / 1.5

    ids, mask = 99 - torch.arange(5 * rows).view(rows, 5), torch.ones(rows, 5, dtype=torch.long)
    with eval_mode(model := seeded(Tokens)):
        first_pass(model, Inputs((ids, mask, mask.sum(dim=1))))
    given, masks, lengths = seen[0]
    assert len(set(map(tuple, given.tolist()))) == PROBE_ROWS
    assert torch.equal(given[:rows], ids[:PROBE_ROWS])
    for row in range(PROBE_ROWS):
        assert bool((given[row] <= ids[row % rows]).all()), "in range of every table that the id was in range of"
    assert bool((masks == 1).all())
    assert lengths.tolist() == [5] * PROBE_ROWS
