"""Guards on Hugging Face models built from small configurations; `test_architectures.py` searches many more heads."""

import pytest
import torch
from support import torchvision_operators  # noqa: F401 - before transformers, which imports torchvision
from support.networks import CLASSES, one_thread, seeded  # noqa: F401

from oodles.guard import Guard
from oodles.network.extraction import extract
from oodles.network.taps import eval_mode

transformers = pytest.importorskip("transformers")

NAMES = ("sport", "politics", "science", "arts", "weather")
ENCODER = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
ENCODER |= {"initializer_range": 0.3, "id2label": dict(enumerate(NAMES))}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def built(kind, **settings):
    return seeded(lambda: kind(kind.config_class(**settings))).eval()


def bert(**settings):
    return built(transformers.BertForSequenceClassification, **ENCODER, vocab_size=60, **settings)


def gpt2():
    return built(transformers.GPT2ForSequenceClassification, **GPT2, vocab_size=60, id2label=ENCODER["id2label"])


def vit():
    return built(transformers.ViTForImageClassification, **ENCODER, image_size=8, patch_size=4)


def tokens(rows, *, seed=0, length=9):
    """Sequences of different lengths, padded on the right, as a tokenizer gives them."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 60, (rows, length), generator=generator)
    mask = (torch.arange(length) < torch.randint(2, length + 1, (rows, 1), generator=generator)).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def inputs_for(make, rows, seed):
    if make is vit:
        return {"pixel_values": torch.randn(rows, 3, 8, 8, generator=torch.Generator().manual_seed(seed))}
    return tokens(rows, seed=seed)


@pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")  # of LayerNorm one direction is constant
@pytest.mark.parametrize("make", [bert, gpt2, vit])
@pytest.mark.parametrize("spec", [None, "dice(0.5)"])
@pytest.mark.filterwarnings("ignore:the model's accuracy")
def test_a_guard_gives_the_models_own_logits_and_the_detectors_score(make, spec, tmp_path):
    model, labels = make(), torch.arange(160) % CLASSES
    train, calibration = (
        transformers.BatchEncoding({**inputs_for(make, 160, seed), "labels": labels}) for seed in (1, 2)
    )
    guard = Guard.fit(model, [train], calibration=[calibration], detector=spec)
    new = inputs_for(make, 7, seed=3)
    verdict = guard(**new)
    with eval_mode(model):
        assert torch.equal(verdict.logits, model(**new).logits), "bit for bit"
    torch.testing.assert_close(verdict.score, guard.detector.score(extract(model, [new])), rtol=1e-3, atol=1e-3)
    assert torch.equal(guard({**new, "labels": labels[:7]}).score, verdict.score)
    guard.save(tmp_path / "g")
    back = Guard.load(tmp_path / "g", make())
    assert guard.class_names == back.class_names == NAMES
    for row in range(7):  # one at a time from the first call, on which the last layer is found
        one = back(**{key: part[row : row + 1] for key, part in new.items()})
        torch.testing.assert_close(one.score, verdict.score[row : row + 1], rtol=1e-4, atol=1e-4)


def test_a_multi_label_configuration_is_recognised():
    model, inputs = bert(problem_type="multi_label_classification"), tokens(160)
    several = torch.zeros(160, CLASSES)
    several[:, 1:3] = 1
    features = extract(model, [{**inputs, "labels": several}])
    assert features.multilabel
    assert features.labels is None
    assert "joint_energy" in Guard.fit(model, [{**inputs, "labels": several}]).detector.detectors
