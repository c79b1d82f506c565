"""``extract``: the model is left as it was, loaders of every kind, and stores that survive interruptions."""

import copy
import json
import subprocess
import sys
import textwrap
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support import networks
from support.networks import CLASSES, batched, interrupted, one_thread, pictures, seeded  # noqa: F401
from support.processes import PATIENCE, start, wait_for
from support.snapshots import lived_in, numbers, portrait, same
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import oodles
from oodles.errors import DataError, FileError, HeadError, OodlesError
from oodles.features import Features
from oodles.network import storing
from oodles.network.extraction import extract
from oodles.network.fingerprints import model_fingerprint

ROWS, BATCH = 20, 5


# The model is left exactly as it was ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loader", "error"),
    [
        (lambda: iter(batched(ROWS, BATCH)), None),
        (lambda: interrupted(batched(ROWS, BATCH)[:2], RuntimeError("disk gone")), RuntimeError),
        (lambda: interrupted(batched(ROWS, BATCH)[:2]), KeyboardInterrupt),
        (lambda: [(pictures(5), None), (torch.zeros(5, 7, 8, 8), None)], DataError),
    ],
    ids=["complete", "error in the loader", "interrupted", "error in the model"],
)
@pytest.mark.parametrize(
    "options", [{}, {"head": False}, {"layers": ["body.conv1"]}], ids=["head found", "head=False", "layers="]
)
def test_the_model_is_left_as_it_was(loader, error, options):
    model = lived_in()
    grad = model.body.conv2.weight.grad.clone()
    before, weights = portrait(model), numbers(model)
    with pytest.raises(error) if error else nullcontext():
        extract(model, loader(), **options)
    assert portrait(model) == before
    assert torch.equal(model.body.conv2.weight.grad, grad)
    for key, tensor in numbers(model).items():
        assert torch.equal(tensor, weights[key]), key


@pytest.mark.parametrize("name", ["Stochastic", "FinalReLU", "Prototypes"])
def test_a_refused_model_is_left_as_it_was_too(name):
    model = seeded(getattr(networks, name)).train()
    model.body.eval()
    torch.manual_seed(3)
    before = portrait(model)
    if name == "Stochastic":
        before.pop("random")  # the model itself draws random numbers
    with pytest.raises(HeadError):
        extract(model, batched(ROWS, BATCH))
    after = portrait(model)
    assert {key: after[key] for key in before} == before


def test_the_callers_grad_mode_is_kept_and_nothing_requires_grad():
    model = seeded(networks.Net)
    for mode in (True, False):
        with torch.set_grad_enabled(mode):
            features = extract(model, batched(ROWS, BATCH))
            assert torch.is_grad_enabled() is mode
        assert not features.embedding.requires_grad
        assert not features.logits.requires_grad
        assert not features.head.weight.requires_grad


def test_features_do_not_change_when_the_model_is_trained_further():
    model = seeded(networks.Net)
    features = extract(model, batched(ROWS, BATCH))
    weight = features.head.weight.clone()
    with torch.no_grad():
        model.fc.weight.zero_()
    assert torch.equal(features.head.weight, weight)


def test_the_users_own_hooks_and_the_network_run_once_per_image():
    model = seeded(networks.Net)
    seen = []
    model.fc.register_forward_hook(lambda module, arguments, output: seen.append(len(output)))
    extract(model, batched(ROWS, BATCH), head=False)
    assert seen == [5, 5, 5, 5]
    extract(model, batched(ROWS, BATCH))
    assert [rows for rows in seen if rows == BATCH] == [5] * 8, "the search for the head runs smaller batches"


# Results ------------------------------------------------------------------------------------------


def test_layers_are_pooled_over_space_or_tokens():
    model = seeded(networks.Net).eval()
    features = extract(model, batched(ROWS, BATCH), layers=["body", "body.conv1", "fc"])
    assert sorted(features.layers) == ["body", "body.conv1", "fc"]
    with torch.no_grad():
        images = pictures(ROWS)
        wanted = {
            "body": model.body(images).sum(dim=(2, 3)) / 9,
            "body.conv1": model.body.conv1(images).sum(dim=(2, 3)) / 64,
            "fc": model(images),
        }
        for name, activation in wanted.items():
            torch.testing.assert_close(features.layers[name], activation, rtol=1e-5, atol=1e-6)

    model = seeded(networks.Transformer).eval()
    features = extract(model, batched(ROWS, BATCH), layers=["encoder"])
    with torch.no_grad():
        tokens = model.encoder(model.patch(pictures(ROWS)).flatten(2).transpose(1, 2))
    torch.testing.assert_close(features.layers["encoder"], tokens.sum(dim=1) / 4, rtol=1e-5, atol=1e-5)


def test_layers_that_cannot_be_pooled_or_never_run_are_refused():
    class Odd(networks.Net):
        def __init__(self):
            super().__init__()
            self.odd = nn.Flatten(0)

        def forward(self, images):
            hidden = self.hidden(images)
            self.odd(hidden)
            return self.fc(hidden)

    with pytest.raises(HeadError, match=r"layer odd returns \(40,\)"):
        extract(seeded(Odd), batched(ROWS, BATCH), layers=["odd"])
    model = seeded(networks.Net)
    model.spare = nn.Linear(2, 2)
    with pytest.raises(OodlesError, match="layer spare did not run"):
        extract(model, batched(ROWS, BATCH), layers=["spare"])


def test_inner_layers_are_kept_without_a_head_too():
    model = seeded(networks.Net)
    whole = extract(model, batched(ROWS, BATCH), layers=["body"])
    without = extract(model, batched(ROWS, BATCH), layers=["body"], head=False)
    assert without.head is None
    assert torch.equal(without.logits, whole.logits)
    assert torch.equal(without.layers["body"], whole.layers["body"])


def test_batch_sizes_do_not_matter():
    model = seeded(networks.Net)
    whole = extract(model, batched(ROWS, ROWS))
    features = extract(model, batched(ROWS, 3))
    torch.testing.assert_close(features.embedding, whole.embedding, rtol=1e-5, atol=1e-6)
    assert torch.equal(features.labels, whole.labels)


def test_half_precision_rounds_the_rows_only():
    model = seeded(networks.Net)
    whole, half = (extract(model, batched(ROWS, BATCH), dtype=dtype) for dtype in (torch.float32, torch.float16))
    assert torch.equal(half.embedding, whole.embedding.half())
    assert half.labels.dtype == torch.int64
    assert half.head.same_as(whole.head)


# Loaders ----------------------------------------------------------------------------------------


def test_loaders_of_every_kind():
    """What a batch may be is tested with ``BatchReader``."""

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(pictures(ROWS))

    model, batches = seeded(networks.Net), batched(ROWS, BATCH)
    dataset = TensorDataset(pictures(ROWS), torch.cat([labels for _, labels in batches]))
    named = [{"image": images, "label": labels.tolist()} for images, labels in batches]
    for loader in (iter(batches), DataLoader(dataset, batch_size=BATCH), named):
        same(extract(model, loader), extract(model, batches))
    for loader in (DataLoader(Stream(), batch_size=BATCH), [images for images, _ in batches]):
        same(extract(model, loader), extract(model, batches, labels=False))


@pytest.mark.parametrize("store", [False, True])
def test_loaders_that_are_refused(store, tmp_path):
    folders = (tmp_path / str(number) for number in range(100))

    def run(loader, **options):
        return extract(seeded(networks.Net), loader, store=next(folders) if store else None, **options)

    with pytest.raises(DataError, match="the loader gave no batch"):
        run([])
    with pytest.raises(DataError, match="some batches have labels and some do not"):
        run([batched(5, 5)[0], pictures(5)])
    with pytest.raises(DataError, match=r"1 of 5 labels are not classes.*the first is 5 in row 1"):
        run([(pictures(5), torch.tensor([0, CLASSES, 1, 2, 3]))])
    assert run([(pictures(5), torch.full((5,), 99))], labels=False).labels is None


# Stores -----------------------------------------------------------------------------------------


@pytest.fixture
def tiny_shards(monkeypatch):
    """One shard per batch of the loader."""
    monkeypatch.setattr(storing, "SHARD_ELEMENTS", 1)


@pytest.mark.usefixtures("tiny_shards")
def test_a_store_has_the_same_features_as_memory(tmp_path):
    model = seeded(networks.Net)
    stored = extract(model, batched(ROWS, BATCH), store=tmp_path / "s", layers=["body"], note="twenty")
    same(stored, extract(model, batched(ROWS, BATCH), layers=["body"]))
    assert len(list((tmp_path / "s").glob("shard-*"))) == 4
    manifest = json.loads((tmp_path / "s" / "manifest.json").read_text())
    assert manifest["note"] == "twenty"
    assert manifest["about"]["model"] == model_fingerprint(model)


@pytest.mark.usefixtures("tiny_shards")
def test_a_store_of_another_extraction_is_refused(tmp_path):
    model, store = seeded(networks.Net), tmp_path / "s"
    batches = batched(ROWS, BATCH)
    extract(model, batches, store=store)
    other = seeded(networks.Net, seed=5)
    wrong = {
        "another model": (other, {}),
        "another dtype": (model, {"dtype": torch.float16}),
        "another labels": (model, {"labels": False}),
        "another head ": (model, {"head": "fc"}),
        "another layers": (model, {"layers": ["body"]}),
    }
    for message, (network, options) in wrong.items():
        with pytest.raises(FileError, match=message):
            extract(network, batches, store=store, **options)
    altered = copy.deepcopy(batches)
    altered[2][0][1, 0, 0, 0] += 1e-3
    relabelled = copy.deepcopy(batches)
    relabelled[1][1][0] = (relabelled[1][1][0] + 1) % CLASSES
    elsewhere = [
        ("shard-00002", altered),
        ("shard-00001", relabelled),
        ("shard-00000", [batches[1], batches[0], *batches[2:]]),
        ("shard-00000", batched(ROWS, 4)),
        ("the end", [*batches, batches[0]]),
        ("shard-00003", batches[:3]),
    ]
    for where, loader in elsewhere:
        message = rf"other inputs, in another order or in other batch sizes; they differ at {where}"
        with pytest.raises(FileError, match=message):
            extract(model, loader, store=store)
    same(Features.load(store), extract(model, batches))


def test_a_shuffling_loader_is_refused(tmp_path):
    dataset = TensorDataset(pictures(ROWS))
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, generator=generator)
    extract(seeded(networks.Net), loader, store=tmp_path / "s")
    with pytest.raises(FileError, match="does not shuffle"):
        extract(seeded(networks.Net), loader, store=tmp_path / "s")


@pytest.mark.usefixtures("tiny_shards")
@pytest.mark.parametrize("name", ["Net", "ConvBeforePool", "Tied", "TwoHeads", "Scaled", "BatchNormed", "Matmul"])
def test_an_interrupted_extraction_continues(tmp_path, name):
    make = getattr(networks, name)
    whole = extract(seeded(make), batched(ROWS, BATCH), store=tmp_path / "whole")
    with pytest.raises(RuntimeError, match="disk gone"):
        extract(seeded(make), interrupted(batched(ROWS, BATCH)[:2], RuntimeError("disk gone")), store=tmp_path / "s")
    with pytest.raises(FileError, match="unfinished"):
        Features.load(tmp_path / "s")
    resumed = extract(seeded(make), batched(ROWS, BATCH), store=tmp_path / "s")
    same(resumed, whole)
    same(resumed, extract(seeded(make), batched(ROWS, BATCH)))


def shard_rows(store):
    return [entry["rows"] for entry in json.loads((store / "manifest.json").read_text())["shards"]]


def test_a_shard_is_written_every_few_seconds_so_that_a_small_extraction_continues_too(tmp_path, monkeypatch):
    """A slow network on few images would else write its only shard at the end, and start over if interrupted."""
    model, batches = seeded(networks.Net), batched(ROWS, BATCH)
    clock = iter(range(0, 10_000, 10))
    with monkeypatch.context() as patched:
        patched.setattr(storing, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        extract(model, batches, store=tmp_path / "slow")
        patched.setattr(storing, "time", SimpleNamespace(monotonic=lambda: 0))
        extract(model, batches, store=tmp_path / "quick")
    assert shard_rows(tmp_path / "slow") == [15, 5], "the clock went on by ten seconds per batch"
    assert shard_rows(tmp_path / "quick") == [ROWS]

    monkeypatch.setattr(storing, "SHARD_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        extract(model, interrupted(batches[:3]), store=tmp_path / "s", head=False)
    assert shard_rows(tmp_path / "s") == [BATCH] * 3
    model.body.calls = 0
    resumed = extract(model, batches, store=tmp_path / "s", head=False)
    assert model.body.calls == 1
    same(resumed, extract(model, batches, head=False))


KILLED = """
    import sys, time
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    import torch
    torch.set_num_threads(1)
    from support import networks
    from oodles.network import extraction, storing

    storing.SHARD_ELEMENTS = 1

    def batches():
        for number, batch in enumerate(networks.batched(40, 4)):
            if number == 3 and sys.argv[3:]:
                Path(sys.argv[3]).touch()
                time.sleep(600)
            yield batch

    extraction.extract(networks.seeded(networks.Net), batches(), store=sys.argv[2])
"""


def test_a_killed_extraction_loses_no_row_and_repeats_none(tmp_path):
    script, store, halted = tmp_path / "run.py", tmp_path / "s", tmp_path / "halted"
    script.write_text(textwrap.dedent(KILLED))
    command = [sys.executable, script, Path(networks.__file__).parents[1], store]
    with start([*command, halted]) as running:
        wait_for(halted.exists, running)
        running.kill()
        running.communicate()
    listed = [entry["file"] for entry in json.loads((store / "manifest.json").read_text())["shards"]]
    assert len(listed) == 3
    kept = {file: (store / file).read_bytes() for file in listed}
    with pytest.raises(FileError, match="unfinished"):
        Features.load(store)

    subprocess.run(command, check=True, timeout=PATIENCE)
    resumed = Features.load(store)
    same(resumed, extract(seeded(networks.Net), networks.batched(40, 4)))
    assert len({tuple(row) for row in resumed.embedding.tolist()}) == len(resumed) == 40
    assert {file: (store / file).read_bytes() for file in listed} == kept, "complete shards are not written again"


# One logit --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
def test_a_single_logit_is_two_classes(bias):
    """MSP, entropy and others are constant on one logit, and a guard would accept everything."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 1, bias=bias)).eval()
    images = torch.randn(200, 3, 8, 8)
    with pytest.warns(UserWarning, match="single logit z, treated as two classes with logits 0 and z"):
        features = extract(model, [images[:90], images[90:]], progress=False)
    z = model(images).detach()
    assert (features.classes, features.width) == (2, 8)
    torch.testing.assert_close(features.logits, torch.cat([torch.zeros_like(z), z], dim=1))
    torch.testing.assert_close(features.head(features.embedding), features.logits)
    probability = torch.sigmoid(z)[:, 0]
    expected = torch.maximum(probability, 1 - probability).log()
    torch.testing.assert_close(oodles.MSP().score(features), expected)
    for text in ("msp", "entropy", "gen", "fdbd", "energy", "default"):
        assert oodles.parse(text).fit(features).score(features).std() > 0, text


def test_a_guard_on_a_single_logit_gives_the_models_own_logit():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 1)).eval()
    images = torch.randn(300, 3, 8, 8)
    with pytest.warns(UserWarning, match="single logit"):
        guard = oodles.Guard.fit(model, [images], detector="msp")
    with pytest.warns(UserWarning, match="single logit"):
        verdict = guard(images)
    assert torch.equal(verdict.logits, model(images))
    assert torch.equal(verdict.label, (model(images)[:, 0] > 0).long())
    assert 0.85 < verdict.is_id.double().mean() < 1
