"""What the snippets of the documentation take for granted: small models, loaders, images and a folder to work in."""

import shutil
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from support import onnx_files
from support.images import noise
from support.site import DOCS, blocks
from torch import Tensor, nn

import oodles as ood
from oodles.data.loaders import normalise
from oodles.data.transforms import Transform
from oodles.models import build_model
from oodles.testing import example_features

CLASSES, SIZE = ("cat", "dog", "frog"), 32
TRANSFORM = Transform(SIZE, SIZE, (0.5,) * 3, (0.25,) * 3)
COLOURS = {"cat": (200, 60, 30), "dog": (30, 60, 200), "frog": (40, 190, 60)}
MYNETS = """
    from torch import nn

    def resnet18():
        body = [nn.Conv2d(3, 24, 8, stride=16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        return nn.Sequential(*body, nn.Linear(24, 3))
"""


def vision_model() -> nn.Module:
    body = [nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.BatchNorm2d(16), nn.Conv2d(16, 24, 3, stride=2), nn.ReLU()]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, len(CLASSES)))


def images(rows: int) -> tuple[Tensor, Tensor]:
    """Noisy images of one colour as ``TRANSFORM`` prepares them, and labels."""
    pixels = (60 * torch.randn(rows, 3, SIZE, SIZE) + 255 * torch.rand(rows, 3, 1, 1)).clamp(0, 255)
    return normalise(TRANSFORM, pixels.byte()), torch.randint(0, len(CLASSES), (rows,))


def table(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(rows, 6), torch.randint(0, 5, (rows,)), torch.randint(0, len(CLASSES), (rows,))


def vision_names() -> dict[str, Any]:
    train, held_out = [images(50) for _ in range(8)], [images(50) for _ in range(4)]
    return {
        "model": vision_model(),
        "train_loader": train,
        "held_out_loader": held_out,
        "sketch_loader": [3 * torch.randn(50, 3, SIZE, SIZE) for _ in range(2)],
        "batch": images(7)[0],
        "transform": TRANSFORM,
        "train_set": [(image, label) for batch in train for image, label in zip(*batch, strict=True)],
        "held_out_set": [(image, label) for batch in held_out for image, label in zip(*batch, strict=True)],
    }


def feature_names() -> dict[str, Any]:
    sample = example_features(640)
    train, held_out = sample[:400], sample[400:]
    sketches = ood.Features(example_features(60, seed=5).embedding, head=sample.head)
    detector = ood.parse("energy").fit(train)
    return {
        "ood": ood,
        "train": train,
        "held_out": held_out,
        "new": sketches,
        "sketches": sketches,
        "detector": detector,
        "threshold": ood.calibrate(detector.score(held_out)),
        "rows": ood.benchmark([detector], train=train, test=held_out, ood={"sketches": sketches}),
        "id_scores": detector.score(held_out),
        "ood_scores": detector.score(sketches),
    }


def guard_names() -> dict[str, Any]:
    given = vision_names()
    train = ood.extract(given["model"], given["train_loader"])
    held_out = ood.extract(given["model"], given["held_out_loader"])
    detector = ood.combine(["energy", "knn(5)", "dice(0.5)"], train=train, held_out=held_out)
    guard = ood.Guard(given["model"], detector, ood.calibrate(detector.score(held_out)))
    given |= {"ood": ood, "train": train, "held_out": held_out, "new": held_out[:50]}
    return given | {"detector": detector, "guard": guard}


def onnx_names(folder: Path) -> dict[str, Any]:
    onnx_files.write(onnx_files.GRAPHS["logits"], folder / "model.onnx")
    train, held_out = onnx_files.batches((300, 100))
    return {"train_loader": [train], "held_out_loader": [held_out]}


def exported_names(folder: Path) -> dict[str, Any]:
    given = guard_names()
    exported = given["guard"].export(folder / "guard.zip", inputs=given["held_out_loader"])
    return given | {"verdict": exported(given["batch"].numpy())}


def saved_names(folder: Path) -> dict[str, Any]:
    """A model whose guard is saved in ``folder``."""
    given = vision_names()
    ood.Guard.fit(given["model"], given["train_loader"], detector="knn", preprocessing=TRANSFORM).save(folder / "guard")
    return given


def library_names(folder: Path) -> dict[str, Any]:
    """Models of several libraries saved in ``folder``, with inputs for each."""
    import timm
    import torchvision
    from safetensors.torch import save_file

    torch.save(torchvision.models.resnet18(num_classes=3).state_dict(), folder / "r18.pt")
    save_file(timm.create_model("test_vit", num_classes=3, img_size=SIZE).state_dict(), folder / "vit.safetensors")
    write_transformers(folder)
    tables = [table(50) for _ in range(8)]
    numbers, category, _ = table(7)
    photos = [(Image.fromarray(noise(SIZE, SIZE, 3, seed=k)), k % 3) for k in range(60)]
    texts = [(f"a{k % 7} b{k % 5} c{k % 11} d{k % 3}", k % 3) for k in range(120)]
    sample = example_features(400)
    given = vision_names() | {
        "train_photos": photos[:40],
        "held_out_photos": photos[40:],
        "photo": photos[0][0],
        "train_texts": texts[:80],
        "held_out_texts": texts[80:],
        "table_loader": tables,
        "held_out_table_loader": [table(50) for _ in range(4)],
        "numbers": numbers,
        "category": category,
        "embeddings": sample.embedding[:300].numpy(),
        "labels": sample.labels[:300].numpy(),
        "held_out_embeddings": sample.embedding[300:].numpy(),
        "new_embeddings": sample.embedding[:9].numpy(),
        "logits": sample.logits[:9].numpy(),
        "probabilities": sample.logits.softmax(dim=1).numpy(),
        "W": sample.head.weight.numpy(),
        "b": sample.head.bias.numpy(),
    }
    tabular = next(block.text for block in blocks(DOCS / "use-on-your-model.md") if "class Tabular" in block.text)
    scope: dict[str, Any] = {"torch": torch}
    exec(tabular.partition("\n\n\n")[0], scope)  # noqa: S102
    torch.save(scope["Tabular"]().state_dict(), folder / "tabular.pt")
    paint_photos(folder)
    return given


def write_transformers(folder: Path) -> None:
    """A small image and a small text classifier as ``save_pretrained`` writes them."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        PreTrainedTokenizerFast,
        ViTConfig,
        ViTForImageClassification,
        ViTImageProcessor,
    )

    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    names = {"id2label": dict(enumerate(CLASSES)), "label2id": {name: k for k, name in enumerate(CLASSES)}}
    vision = ViTConfig(image_size=SIZE, patch_size=8, **sizes, **names)
    ViTForImageClassification(vision).save_pretrained(folder / "my-image-model")
    ViTImageProcessor(size={"height": SIZE, "width": SIZE}).save_pretrained(folder / "my-image-model")
    words = ["[PAD]", "[UNK]", *(f"{letter}{k}" for letter in "abcd" for k in range(11))]
    tokenizer = Tokenizer(models.WordLevel({word: k for k, word in enumerate(words)}, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")  # noqa: S106
    fast.save_pretrained(folder / "my-text-model")
    text = BertConfig(vocab_size=len(words), pad_token_id=0, **sizes, **names)
    BertForSequenceClassification(text).save_pretrained(folder / "my-text-model")


def paint_photos(folder: Path) -> None:
    """``photos`` with class folders for training, validation and tests, new images and sketches; older ones."""
    generator = np.random.default_rng(0)

    def paint(path: Path, colour: Any, kind: str = "png") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.clip(np.array(colour) + generator.normal(0, 40, (SIZE, SIZE, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(path.with_suffix(f".{kind}"))

    for part, count in (("train", 40), ("val", 34), ("test", 8)):
        for name, colour in COLOURS.items():
            for number in range(count):
                paint(folder / "photos" / part / name / f"{number:03}", colour)
    for number in range(8):
        paint(folder / "photos" / "new" / f"{number}", (128, 128, 128), "jpg")
        paint(folder / "photos" / "sketches" / f"{number}", (240, 240, 240))
        paint(folder / "archive" / "old" / f"{number}", COLOURS["cat"], "jpg")
    (folder / "photo.jpg").write_bytes((folder / "photos" / "new" / "1.jpg").read_bytes())
    (folder / "new").symlink_to(folder / "photos" / "new")


def write_workspace(folder: Path) -> None:
    """Everything that commands of the documentation name and do not make themselves, except guards and features."""
    paint_photos(folder)
    shutil.make_archive(str(folder / "more"), "zip", folder / "archive")
    (folder / "mynets.py").write_text(textwrap.dedent(MYNETS))
    own = next(block.text for block in blocks(DOCS / "write-your-own-detector.md") if block.language == "python")
    (folder / "mydetectors.py").write_text(own)
    (folder / "guard.key").write_bytes(bytes(range(32)))
    torch.manual_seed(0)
    model = build_model("mynets:resnet18")
    with torch.no_grad():
        model[-1].weight.mul_(20)  # logits as far apart as those of a trained network
    torch.save(model.state_dict(), folder / "r18.pt")
