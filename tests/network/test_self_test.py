"""What a guard is tried on when it is loaded: a model that has changed is refused, a copy in half precision is not."""

import copy
import json

import pytest
import torch
from support import networks
from support.images import PLAIN
from support.networks import CLASSES, batched, one_thread, pictures, seeded  # noqa: F401
from torch import nn

from oodles import guard as guards
from oodles.calibration import Threshold
from oodles.data.inputs import Inputs
from oodles.deploy.saving import load_guard
from oodles.detectors import DICE, MSP, ODIN, Energy
from oodles.errors import FileError
from oodles.guard import Guard
from oodles.network.self_test import MAX_NUMBERS, Probe, probe_like
from oodles.records.files import write_record

TRAIN, HELD_OUT = batched(120, 40), batched(60, 20, seed=9)
LIMIT = Threshold(value=0.0, id_rate=0.9, calibration_size=9)


class Scaled(networks.Net):
    """A network with a setting that no module shows."""

    factor = 1.0

    def forward(self, images):
        return super().forward(images * self.factor)


def saved(folder, detector=None):
    guard = Guard.fit(seeded(Scaled), TRAIN, calibration=HELD_OUT, detector=detector or DICE(p=0.5))
    guard.save(folder)
    return guard


def edited(folder, change):
    record = json.loads((folder / "guard.json").read_text())
    record.pop("seal")
    change(record)
    write_record(folder / "guard.json", record)


def test_a_change_that_no_module_shows_is_refused(tmp_path):
    guard = saved(tmp_path)
    assert torch.equal(Guard.load(tmp_path, seeded(Scaled))(pictures(9)).score, guard(pictures(9)).score)
    changed = seeded(Scaled)
    changed.factor = 1.1
    with pytest.raises(FileError, match=r"another model: the logits for its test inputs differ"):
        Guard.load(tmp_path, changed)


def test_a_changed_hyperparameter_or_weight_is_refused_without_running_the_model(tmp_path):
    saved(tmp_path)
    other, moved = seeded(Scaled), seeded(Scaled)
    other.body.bn1.eps = 0.1
    moved.body.conv1.bias.data[0] += 1e-6
    for changed in (other, moved):
        with pytest.raises(FileError, match="guards another model: the weights or hyperparameters differ"):
            Guard.load(tmp_path, changed)
        assert changed.body.calls == 0


def test_scores_are_compared_as_well(tmp_path):
    saved(tmp_path)
    edited(tmp_path, lambda record: record["self_test"].update(scores=[5.0, 5.0]))
    with pytest.raises(FileError, match="guards another model: the scores for its test inputs differ"):
        Guard.load(tmp_path, seeded(Scaled))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_copy_in_half_precision_is_accepted_and_another_model_in_half_precision_is_not(tmp_path, dtype):
    guard = saved(tmp_path)
    rounded = Guard.load(tmp_path, seeded(Scaled).to(dtype))
    score = rounded(pictures(9).to(dtype)).score
    torch.testing.assert_close(score.float(), guard(pictures(9)).score, rtol=5e-2, atol=5e-2)
    other = seeded(Scaled)
    other.fc.weight.data[0, 0] += 0.1
    with pytest.raises(FileError, match="guards another model"):
        Guard.load(tmp_path, other.to(dtype))


def test_another_version_of_torch_may_show_hyperparameters_differently(tmp_path):
    saved(tmp_path)
    edited(tmp_path, lambda record: record.update(model="0" * 64))
    with pytest.raises(FileError, match="the weights or hyperparameters differ"):
        Guard.load(tmp_path, seeded(Scaled))
    edited(tmp_path, lambda record: record["self_test"].update(torch="1.0"))
    Guard.load(tmp_path, seeded(Scaled))
    changed = seeded(Scaled)
    changed.body.bn1.eps = 0.1
    with pytest.raises(FileError, match="the logits for its test inputs differ"):
        Guard.load(tmp_path, changed)


@pytest.mark.parametrize(
    "change",
    [
        {"args": []},
        {"args": [{"type": "Noise", "shape": [60000] * 8, "dtype": "float32"}]},
        {"args": [{"type": "Noise", "shape": [2, 7, 8, 8], "dtype": "float32"}]},
        {"args": [{"type": "Numbers", "shape": [2, 3], "dtype": "int64", "values": [1]}]},
        {"args": [{"type": "Plain", "value": 1}]},
        {"kwargs": {"images": {"type": "Plain", "value": 1}}},
        {"logits": [[1.0], []]},
        {"logits": []},
        {"copies": [1]},
        {"args": [{"type": "os.system", "value": "x"}]},
    ],
    ids=str,
)
def test_a_self_test_with_other_content_is_refused_in_one_line(tmp_path, change):
    saved(tmp_path)
    edited(tmp_path, lambda record: record["self_test"].update(change))
    with pytest.raises(FileError) as caught:
        Guard.load(tmp_path, seeded(Scaled))
    assert "\n" not in str(caught.value)


def test_a_guard_is_left_as_it_was_by_saving_and_loading(tmp_path):
    with pytest.warns(UserWarning, match="returns probabilities"):
        guard = Guard.fit(seeded(networks.Softmax), TRAIN, calibration=HELD_OUT, detector="energy")
    guard.save(tmp_path)  # without a warning
    loaded = Guard.load(tmp_path, seeded(networks.Softmax))
    with pytest.warns(UserWarning, match="returns probabilities"):
        first = loaded(pictures(3))
    loaded.save(tmp_path / "again")
    records = [load_guard(folder)[2]["self_test"] for folder in (tmp_path, tmp_path / "again")]
    assert records[0] == records[1]
    assert torch.equal(loaded(pictures(3)).score, first.score)


def test_a_detector_with_input_steps_is_tried_with_them(tmp_path):
    saved(tmp_path, detector=ODIN(temperature=10.0, epsilon=0.01))
    assert load_guard(tmp_path)[2]["self_test"] is not None
    Guard.load(tmp_path, seeded(Scaled))


# What it is tried on ------------------------------------------------------------------------------


def test_images_are_noise_of_the_recorded_size_if_no_input_was_seen(tmp_path):
    Guard(seeded(networks.Net), Energy(), LIMIT, preprocessing=PLAIN).save(tmp_path)
    argument = {"type": "Noise", "shape": [2, 3, 8, 8], "dtype": "float32"}
    assert load_guard(tmp_path)[2]["self_test"]["args"] == [argument]
    Guard(seeded(networks.Net), Energy(), LIMIT).save(tmp_path)
    assert load_guard(tmp_path)[2]["self_test"] is None
    Guard.load(tmp_path, seeded(networks.Net))


def test_a_model_that_refuses_noise_or_answers_at_random_has_no_self_test(tmp_path):
    class Refuses(networks.Net):
        def forward(self, images):
            if images.min() < 0:
                raise ValueError("negative")
            return super().forward(images)

    class Random(networks.Net):
        def forward(self, images):
            return super().forward(images) + torch.rand(1)

    for make, head in ((Refuses, "fc"), (Random, False)):
        guard = Guard(seeded(make), MSP(), LIMIT, head=head)
        guard(pictures(4).abs())
        guard.save(tmp_path)
        assert load_guard(tmp_path)[2]["self_test"] is None
        Guard.load(tmp_path, guard.model)


def test_of_texts_no_token_is_kept():
    tokens, mask = torch.tensor([[101, 7, 2045, 102]]), torch.tensor([[1, 1, 1, 0]])
    probe = probe_like(Inputs((), {"input_ids": tokens, "attention_mask": mask, "scale": 0.5, "return_dict": None}))
    made = probe.inputs(torch.device("cpu"))
    assert made.kwargs["input_ids"].tolist() == [[50, 3, 1022, 51]] * 2
    assert made.kwargs["attention_mask"].tolist() == [[1, 1, 1, 0]] * 2
    assert (made.kwargs["scale"], made.kwargs["return_dict"]) == (0.5, None)
    assert made.kwargs["input_ids"].dtype == torch.int64


def test_noise_is_the_same_on_every_machine():
    values = probe_like(Inputs((pictures(5),))).inputs(torch.device("cpu")).args[0]
    assert values.shape == (2, 3, 8, 8)
    wanted = [-0.012968, 0.929148, -1.425556, -1.274684]
    torch.testing.assert_close(values.flatten()[:4], torch.tensor(wanted), atol=1e-6, rtol=0)
    assert abs(float(values.mean())) < 0.1
    assert abs(float(values.std()) - 1) < 0.1


def test_what_cannot_be_described_is_left_out():
    packed = nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(2, 2)])
    assert probe_like(Inputs((packed,))) is None
    assert probe_like(Inputs((torch.zeros(1, MAX_NUMBERS),))) is None
    assert isinstance(probe_like(Inputs((torch.zeros(1, 70, dtype=torch.bool),))), Probe)


def test_the_first_thousand_classes_are_enough(tmp_path, monkeypatch):
    monkeypatch.setattr(guards, "MAX_CLASSES", CLASSES - 1)
    guard = saved(tmp_path)
    assert len(load_guard(tmp_path)[2]["self_test"]["logits"][0]) == CLASSES - 1
    Guard.load(tmp_path, copy.deepcopy(guard.model))
