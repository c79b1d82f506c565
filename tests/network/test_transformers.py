"""Hugging Face models built from small configurations: features and guards are those of the model by hand."""

import pytest
import torch
from support import torchvision_operators  # noqa: F401 - before transformers, which imports torchvision
from support.networks import CLASSES, one_thread, seeded  # noqa: F401

from oodles.deploy.saving import load_guard
from oodles.errors import ArgumentError, DataError, HeadError
from oodles.features import Features
from oodles.guard import Guard
from oodles.network.extraction import extract
from oodles.network.taps import eval_mode

transformers = pytest.importorskip("transformers")

NAMES = ("sport", "politics", "science", "arts", "weather")
VOCABULARY, PADDING = 60, 0
ENCODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
    "initializer_range": 0.3,
}
SPECIAL = {"pad_token_id": PADDING, "bos_token_id": 1, "eos_token_id": 2}


def bert(**settings):
    config = transformers.BertConfig(**ENCODER, num_labels=CLASSES, **settings)
    return seeded(lambda: transformers.BertForSequenceClassification(config)).eval()


def roberta():
    config = transformers.RobertaConfig(**ENCODER, num_labels=CLASSES, **{**SPECIAL, "pad_token_id": 1})
    return seeded(lambda: transformers.RobertaForSequenceClassification(config)).eval()


def distilbert():
    config = transformers.DistilBertConfig(
        vocab_size=VOCABULARY, dim=16, n_layers=2, n_heads=2, hidden_dim=24, num_labels=CLASSES, initializer_range=0.3
    )
    return seeded(lambda: transformers.DistilBertForSequenceClassification(config)).eval()


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=40, num_labels=CLASSES, **SPECIAL
    )
    return seeded(lambda: transformers.GPT2ForSequenceClassification(config)).eval()


def vit():
    config = transformers.ViTConfig(**_sizes("vocab_size", "max_position_embeddings"), image_size=8, patch_size=4)
    config.num_labels = CLASSES
    return seeded(lambda: transformers.ViTForImageClassification(config)).eval()


def _sizes(*without):
    return {name: size for name, size in ENCODER.items() if name not in without}


# The embedding by hand: what each model's code passes to its last layer, and the layer


def pooled_by_bert(model, tokens):
    return model.bert(**tokens).pooler_output, model.classifier


def transformed_by_roberta(model, tokens):
    head = model.classifier
    return torch.tanh(head.dense(model.roberta(**tokens).last_hidden_state[:, 0])), head.out_proj


def projected_by_distilbert(model, tokens):
    return model.pre_classifier(model.distilbert(**tokens).last_hidden_state[:, 0]).relu(), model.classifier


def last_token_of_gpt2(model, tokens):
    states = model.transformer(**tokens).last_hidden_state
    last = tokens["attention_mask"].sum(dim=1) - 1
    return torch.stack([states[row, place] for row, place in enumerate(last.tolist())]), model.score


def first_token_of_vit(model, tokens):
    return model.vit(**tokens).last_hidden_state[:, 0], model.classifier


MODELS = {
    "bert": (bert, pooled_by_bert),
    "roberta": (roberta, transformed_by_roberta),
    "distilbert": (distilbert, projected_by_distilbert),
    "gpt2": (gpt2, last_token_of_gpt2),
    "vit": (vit, first_token_of_vit),
}
TEXT = [name for name in MODELS if name != "vit"]


def tokens(rows, *, seed=0, length=9):
    """Sequences of different lengths, padded on the right, as a tokenizer gives them."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (rows, length), generator=generator)
    lengths = torch.randint(2, length + 1, (rows, 1), generator=generator)
    mask = (torch.arange(length) < lengths).long()
    return {"input_ids": torch.where(mask == 1, ids, PADDING), "attention_mask": mask}


def inputs_for(name, rows, *, seed=0):
    if name == "vit":
        return {"pixel_values": torch.randn(rows, 3, 8, 8, generator=torch.Generator().manual_seed(seed))}
    return tokens(rows, seed=seed)


def in_batches(inputs, size):
    rows = len(next(iter(inputs.values())))
    labels = torch.arange(rows) % CLASSES
    parts = {**inputs, "labels": labels}
    return [{key: part[start : start + size] for key, part in parts.items()} for start in range(0, rows, size)]


def by_hand(name, model, inputs):
    with eval_mode(model):
        embedding, layer = MODELS[name][1](model, inputs)
        return embedding, model(**inputs).logits, layer


# Features ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_embedding_logits_and_head_are_those_of_the_model(name):
    model, inputs = MODELS[name][0](), inputs_for(name, 20)
    features = extract(model, in_batches(inputs, 7))
    embedding, logits, layer = by_hand(name, model, inputs)
    torch.testing.assert_close(features.embedding, embedding, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(features.logits, logits, rtol=1e-5, atol=1e-5)
    assert features.labels.tolist() == [row % CLASSES for row in range(20)]
    assert torch.equal(features.head.weight, layer.weight)
    assert features.head.bias is None if layer.bias is None else torch.equal(features.head.bias, layer.bias)


@pytest.mark.parametrize("name", TEXT)
def test_padding_and_mask_are_taken_into_account(name):
    model, inputs = MODELS[name][0](), tokens(6)
    plain = extract(model, [inputs])
    longer = {key: torch.nn.functional.pad(part, (0, 3)) for key, part in inputs.items()}
    torch.testing.assert_close(extract(model, [longer]).embedding, plain.embedding, rtol=1e-4, atol=1e-4)
    if name != "gpt2":  # which finds the last token by its padding
        unmasked = extract(model, [inputs["input_ids"]])
        assert not torch.allclose(unmasked.embedding, plain.embedding, atol=1e-3), "the test distinguishes them"


def test_the_second_of_two_sentences_is_an_input_too():
    model, inputs = bert(), tokens(8)
    second = {**inputs, "token_type_ids": (torch.arange(9) > 3).long().expand(8, -1).contiguous()}
    for batch in (inputs, second):
        torch.testing.assert_close(extract(model, [batch]).logits, by_hand("bert", model, batch)[1])
    assert not torch.allclose(extract(model, [inputs]).logits, extract(model, [second]).logits, atol=1e-4)


def test_tuples_of_tensors_say_where_their_labels_are():
    model, inputs = bert(), tokens(8)
    labels = torch.arange(8) % CLASSES
    batch = inputs["input_ids"], inputs["attention_mask"], labels
    with pytest.raises(DataError, match=r"say which item has the labels, e\.g\. labels=2"):
        extract(model, [batch])
    features = extract(model, [batch], labels=2)
    assert torch.equal(features.labels, labels)
    torch.testing.assert_close(features.logits, by_hand("bert", model, inputs)[1])


def test_a_tokenizers_own_batch_is_read():
    encoded = transformers.BatchEncoding({**tokens(8), "labels": torch.arange(8) % CLASSES})
    features = extract(bert(), [encoded])
    assert features.labels.tolist() == [row % CLASSES for row in range(8)]


def test_a_model_that_classifies_tokens_is_refused():
    config = transformers.BertConfig(**ENCODER, num_labels=CLASSES)
    model = seeded(lambda: transformers.BertForTokenClassification(config)).eval()
    with pytest.raises(HeadError, match=r"float32 \(4, 9, 5\), one prediction per token"):
        extract(model, [tokens(8)])


def test_layers_of_an_encoder_are_pooled_over_tokens():
    model, inputs = distilbert(), tokens(8)
    features = extract(model, [inputs], layers=["distilbert.transformer.layer.0"])
    with eval_mode(model):
        states = model.distilbert(**inputs, output_hidden_states=True).hidden_states[1]
    torch.testing.assert_close(features.layers["distilbert.transformer.layer.0"], states.mean(dim=1))


# What the configuration says --------------------------------------------------------------------


def test_class_names_are_those_of_the_configuration(tmp_path):
    model = bert(id2label=dict(enumerate(NAMES)), label2id={name: place for place, name in enumerate(NAMES)})
    features = extract(model, [tokens(8)], store=tmp_path / "s")
    assert features.class_names == NAMES
    assert Features.load(tmp_path / "s").class_names == NAMES
    assert extract(bert(), [tokens(8)]).class_names == (), "LABEL_0 and so on are no names"
    guard = Guard.fit(model, in_batches(tokens(120), 40), detector="energy")
    guard.save(tmp_path / "g")
    assert guard.class_names == tuple(load_guard(tmp_path / "g")[2]["class_names"]) == NAMES


def test_a_multi_label_configuration_is_recognised():
    model = bert(problem_type="multi_label_classification")
    several = torch.zeros(120, CLASSES)
    several[:, 1:3] = 1
    batches = [{**tokens(120), "labels": several}]
    features = extract(model, batches)
    assert features.multilabel
    assert features.labels is None
    torch.testing.assert_close(features.logits, by_hand("bert", model, tokens(120))[1])
    with pytest.raises(ArgumentError, match="energy takes classes as exclusive, but the model is multi-label"):
        Guard.fit(model, batches, detector="energy")
    guard = Guard.fit(model, batches)
    assert "joint_energy" in guard.detector.detectors
    assert torch.equal(guard(**tokens(5)).logits, by_hand("bert", model, tokens(5))[1])
    with pytest.raises(DataError, match=r"labels \(120, 5\) of zeros and ones; pass multilabel=True"):
        extract(bert(), batches)


# Guards -----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::oodles.errors.FitWarning")  # of LayerNorm one direction is constant
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("spec", [None, "dice(0.5)"])
def test_a_guard_gives_the_models_own_logits_and_the_detectors_score(name, spec, tmp_path):
    model = MODELS[name][0]()
    train, calibration = (in_batches(inputs_for(name, 160, seed=seed), 40) for seed in (1, 2))
    guard = Guard.fit(model, train, calibration=calibration, detector=spec)
    new = inputs_for(name, 7, seed=3)
    verdict = guard(**new)
    assert torch.equal(verdict.logits, by_hand(name, model, new)[1]), "bit for bit"
    torch.testing.assert_close(verdict.score, guard.detector.score(extract(model, [new])), rtol=1e-3, atol=1e-3)
    with_labels = {**new, "labels": torch.zeros(7, dtype=torch.long)}
    assert torch.equal(guard(with_labels).score, verdict.score)
    guard.save(tmp_path / "g")
    back = Guard.load(tmp_path / "g", MODELS[name][0]())
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(back(**new), verdict, strict=True))


@pytest.mark.parametrize("name", TEXT)
def test_a_guard_may_be_given_one_text_at_a_time(name):
    """Also as its first batch, on which the last layer is found."""
    model = MODELS[name][0]()
    guard = Guard.fit(model, in_batches(tokens(160), 40), detector="dice(0.5)")
    want = guard(**tokens(4, seed=3))
    fresh = Guard(model, guard.detector, guard.threshold)
    for row in range(4):
        one = fresh(**{key: part[row : row + 1] for key, part in tokens(4, seed=3).items()})
        torch.testing.assert_close(one.score, want.score[row : row + 1], rtol=1e-4, atol=1e-4)
