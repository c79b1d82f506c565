"""``oodles extract``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from oodles.cli import common
from oodles.cli.common import load_model, notice, report_skipped, transform

if TYPE_CHECKING:
    from oodles.features import Features


def extract(
    images: Annotated[Path, Argument(help="A folder of images (or a CIFAR batch, or an SVHN .mat file).")],
    out: Annotated[Path, Option("--out", help="Folder for the features. An interrupted run is continued.")],
    model: common.ModelOption,
    checkpoint: common.CheckpointOption = None,
    head: common.HeadOption = None,
    size: common.SizeOption = 224,
    resize: common.ResizeOption = None,
    mean: common.MeanOption = common.IMAGENET_MEAN,
    std: common.StdOption = common.IMAGENET_STD,
    labels: Annotated[bool, Option(help="Use class folders as labels; --no-labels for data of other classes.")] = True,
    needed_by: Annotated[
        list[str] | None,
        Option("--for", help="Keep the layers and input steps that this detector needs, e.g. 'odin(1000, 0.004)'."),
    ] = None,
    half: Annotated[bool, Option("--half", help="Store float16, at half the size.")] = False,
    limit: common.LimitOption = None,
    device: common.DeviceOption = None,
    skip_bad: common.SkipOption = False,
) -> None:
    """Run your model once over images and keep its embeddings and logits.

    The other commands work on the result: fit needs no network, nor does score for features.

    Example: oodles extract photos/train --model mynets:resnet18 --checkpoint r18.pt --out features/train
    """
    import torch

    from oodles.data.loaders import ImageLoader
    from oodles.data.readers import open_images
    from oodles.detectors import parse
    from oodles.detectors.network_detector import layers_of, steps_of
    from oodles.network.extraction import extract as run

    preprocessing = transform(size, resize, mean, std)
    loader = ImageLoader(open_images(images).sample(limit), preprocessing, labels=labels, skip_bad=skip_bad)
    network = load_model(model, checkpoint)
    detectors = [parse(text) for text in needed_by or []]
    features = run(
        network,
        loader,
        head=head,
        layers=layers_of(detectors),
        steps=steps_of(detectors),
        device=device,
        dtype=torch.float16 if half else torch.float32,
        labels=labels,
        store=out,
        note=str(images),
        preprocessing=preprocessing.as_record(),
    )
    report_skipped(loader)
    notice(f"{features} in {out}")
    if features.holds("labels"):
        _report_labels(features, loader.images.classes)


def _report_labels(features: "Features", folders: tuple[str, ...]) -> None:
    """Say how well the labels fit the model: they are wrong if class folders are missing or in another order."""
    batches = ((batch.logits.argmax(dim=1) == batch.column("labels")).sum() for batch in features.batches())
    accuracy = sum(int(correct) for correct in batches) / len(features)
    notice(f"the model's accuracy by these labels is {accuracy:.1%}")
    if folders and len(folders) != features.classes:
        notice(
            f"{len(folders)} class folders were numbered 0 to {len(folders) - 1}, but the model has {features.classes} "
            "classes, so labels may be wrong; give images of every class, or use --no-labels",
            "[yellow]warning[/yellow]",
        )
