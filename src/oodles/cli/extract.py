"""``oodles extract``."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from oodles.cli.checks import check_choice, read_class_names
from oodles.cli.common import notice, open_set
from oodles.cli.options import ClassesOption, ModelOptions, RunOptions, complete_detector, one_of
from oodles.errors import ArgumentError

if TYPE_CHECKING:
    from oodles.data.transforms import FileBytes

AMP_NAMES = ("bfloat16", "float16")


def extract(
    images: Annotated[Path, Argument(help="A folder of images (or a CIFAR batch, or an SVHN .mat file).")],
    out: Annotated[Path, Option("--out", help="Folder for the features. An interrupted run is continued.")],
    network: ModelOptions,
    given: RunOptions,
    labels: Annotated[bool, Option(help="Use class folders as labels; --no-labels for data of other classes.")] = True,
    classes: ClassesOption = None,
    multilabel: Annotated[
        bool | None, Option(help="Whether an input may have several classes. Default: as the model shows.")
    ] = None,
    needed_by: Annotated[
        list[str] | None,
        Option(
            "--for",
            help="Keep the layers and input steps that this detector needs, e.g. 'odin(1000, 0.004)'.",
            autocompletion=complete_detector,
        ),
    ] = None,
    half: Annotated[bool, Option("--half", help="Store float16, at half the size.")] = False,
    amp: Annotated[
        str | None,
        Option(help="Run the network in mixed precision: bfloat16 or float16.", autocompletion=one_of(*AMP_NAMES)),
    ] = None,
    windows: Annotated[
        str | None,
        Option(
            "--bytes",
            help="The model takes bytes: how many of the beginning and of the end of a file, and what stands for "
            "missing ones, e.g. 1024,1024,256. Every file is read, not only images.",
        ),
    ] = None,
    verify: Annotated[
        bool,
        Option("--verify", help="If --out is complete, read all images again and compare them, not only their files."),
    ] = False,
) -> None:
    """Run your model once over images and keep its embeddings and logits.

    The other commands work on the result: fit needs no network, nor does score for features. With --classes, or if the
    model knows the names of its classes, class folders are matched with them by name; otherwise they are numbered in
    alphabetical order.

    torchrun --nproc-per-node N -m oodles extract ... shares the images among N processes, with the same result. With
    --device cuda each of them uses a GPU of its own.

    Example: oodles extract photos/train --model mynets:resnet18 --checkpoint r18.pt --out features/train
    """
    check_choice("--amp", amp or AMP_NAMES[0], AMP_NAMES)
    transform = given.transform() if windows is None else _file_bytes(windows, given)
    class_names = None if classes is None else read_class_names(classes)
    source = open_set(images, labels=labels, files=windows is not None).sample(given.limit)

    import torch

    from oodles.data.loaders import ImageLoader
    from oodles.detectors import parse
    from oodles.detectors.network_detector import layers_of, steps_of
    from oodles.distributed.processes import current, own_device
    from oodles.network.extraction import extract as run

    detectors = [parse(text) for text in needed_by or []]
    loader = ImageLoader(source, transform, labels=labels, skip_bad=given.skip_bad)
    features = run(
        network.load(),
        loader,
        head=given.head,
        layers=layers_of(detectors),
        steps=steps_of(detectors),
        device=own_device(given.device),
        dtype=torch.float16 if half else torch.float32,
        labels=labels,
        store=out,
        on_bad="mark" if given.skip_bad else "raise",
        note=str(images),
        preprocessing=loader.transform.as_record(),
        classes=class_names,
        multilabel=multilabel,
        amp=None if amp is None else getattr(torch, amp),
        verify=verify,
        processes=current(),
    )
    if loader.skipped:
        notice(f"skipped: {loader.problem_summary()}")
    notice(f"{features} in {out}")
    if current().rank == 0 and (accuracy := features.accuracy) is not None:
        notice(f"the model's accuracy by these labels is {accuracy:.1%}")


def _file_bytes(text: str, given: RunOptions) -> "FileBytes":
    """Return what ``--bytes`` says."""
    from oodles.data.transforms import FileBytes

    if given.given():
        raise ArgumentError(f"--bytes {text} reads files as they are; leave out --size, --resize, --mean and --std")
    if re.fullmatch(r"\d{1,9},\d{1,9},\d{1,9}", text, re.ASCII) is None:
        raise ArgumentError(f"--bytes {text!r} must be three whole numbers, e.g. 1024,1024,256")
    return FileBytes(*map(int, text.split(",")))
