"""``oodles score``."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from oodles.cli import common
from oodles.cli.common import channels, load_model, notice, report_skipped, transform
from oodles.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from oodles.data.transforms import Transform
    from oodles.files import Record

SHIPPED = "cifar10-small"  # the network that is used if the user names none


def score(
    paths: Annotated[
        list[Path],
        Argument(
            metavar="[GUARD] INPUTS",
            help="A folder made by oodles fit, then an image, a folder of images, or features made by oodles extract. "
            "Without a guard: a small CIFAR-10 network that comes with oodles.",
        ),
    ],
    model: Annotated[str | None, Option(help="Needed for images: package.module:factory.")] = None,
    checkpoint: common.CheckpointOption = None,
    size: Annotated[int | None, Option(help="As given to extract; the guard remembers it.")] = None,
    resize: common.ResizeOption = None,
    mean: Annotated[str | None, Option(help="As given to extract.")] = None,
    std: Annotated[str | None, Option(help="As given to extract.")] = None,
    device: common.DeviceOption = None,
    skip_bad: common.SkipOption = False,
    as_json: common.JsonOption = False,
) -> None:
    """Classify and score inputs, and say which are in-distribution.

    Example: oodles score guard photos/new --model mynets:resnet18 --checkpoint r18.pt

    To try it without a model of your own: oodles score photo.jpg
    """
    from oodles.detectors.network_detector import layers_of, steps_of
    from oodles.features import Features
    from oodles.models import load, read_card
    from oodles.models.shipped import GUARD, shipped_folder
    from oodles.network.extraction import extract, model_fingerprint
    from oodles.persistence import GUARD_RECORD, load_guard
    from oodles.store import is_store, read_manifest

    if len(paths) > 2:
        raise ArgumentError(f"score takes a guard and one input, got {len(paths)} paths; put the images in a folder")
    own = len(paths) == 2
    guard, inputs = (paths[0] if own else shipped_folder(SHIPPED) / GUARD), paths[-1]
    if not own and (model is not None or (inputs / GUARD_RECORD).exists()):
        raise ArgumentError(f"score needs a guard and an input, got only {inputs}; fit a guard first")
    detector, threshold, record = load_guard(guard)
    classes: list[str] = [] if own else read_card(SHIPPED)["classes"]
    if is_store(inputs):
        features = Features.load(inputs)
        origin = read_manifest(inputs)["about"].get("model")
        if None not in (origin, record["model"]) and origin != record["model"]:
            raise DataError(f"{inputs} has features of another model than {guard} was fitted on")
        names = [f"row {row}" for row in range(len(features))]
    else:
        from oodles.data.loaders import ImageLoader
        from oodles.data.readers import open_images

        preprocessing = _preprocessing(record["preprocessing"], size, resize, mean, std, guard)
        loader = ImageLoader(open_images(inputs), preprocessing, labels=False, skip_bad=skip_bad)
        if own and model is None:
            raise ArgumentError(f"{inputs} holds images, so --model and --checkpoint are needed")
        network = load(SHIPPED) if model is None else load_model(model, checkpoint)
        if not own:
            _introduce()
        if record["model"] not in (None, model_fingerprint(network)):
            raise DataError(f"{guard} was fitted on another model than {model} with these weights")
        layers, steps = layers_of([detector]), steps_of([detector])
        features = extract(network, loader, head=record["head"], layers=layers, steps=steps, device=device)
        names = loader.names
        report_skipped(loader)
    scores = detector.score(features)
    accepted = threshold.is_id(scores)
    labels = features.logits.argmax(dim=1)
    verdicts = [
        {"input": name, "label": int(label), "score": float(value), "is_id": bool(verdict)}
        | ({"class": classes[int(label)]} if classes else {})
        for name, label, value, verdict in zip(names, labels, scores, accepted, strict=True)
    ]
    if as_json:
        typer.echo(json.dumps({"detector": detector.spec, "threshold": threshold.value, "verdicts": verdicts}))
        return
    for verdict in verdicts:
        mark = "ID " if verdict["is_id"] else "OOD"
        known = verdict.get("class", f"class {verdict['label']}")
        typer.echo(f"{mark}  {verdict['score']:12.7g}  {known:<11} {verdict['input']}")
    notice(f"{int(accepted.sum())} of {len(names)} in-distribution ({detector.spec} >= {threshold.value:.7g})")


def _introduce() -> None:
    """Say which network is used, since the user named none."""
    from oodles.models import read_card

    card = read_card(SHIPPED)
    network = f"{SHIPPED}, {card['what']} ({', '.join(card['classes'])})"
    accuracy = f"{card['test accuracy']:.1%} accurate on JPEG test images"
    notice(f"no guard given: using {network}, {accuracy}. Pictures are resized to 32 pixels.")


def _preprocessing(
    recorded: "Record | None", size: int | None, resize: int | None, mean: str | None, std: str | None, guard: Path
) -> "Transform":
    """The preprocessing of the features that the guard was fitted on, which options must not contradict."""
    from oodles.data.transforms import Transform

    if recorded is None:
        if size is None or mean is None or std is None:
            raise ArgumentError(
                f"{guard} does not record how images were preprocessed; give --size, --mean and --std as used for the "
                f"model, e.g. --size 224 --mean {common.IMAGENET_MEAN} --std {common.IMAGENET_STD}"
            )
        return transform(size, resize, mean, std)
    known = Transform.from_record(recorded)
    asked = (size, resize, mean and channels("mean", mean), std and channels("std", std))
    recalled = (known.size, known.resize, known.mean, known.std)
    if any(value not in (None, own) for value, own in zip(asked, recalled, strict=True)):
        raise ArgumentError(f"{guard} was fitted with other preprocessing ({known}); leave out --size, --mean, --std")
    return known
