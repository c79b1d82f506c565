"""``oodles export``."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from oodles.cli.checks import check_guard
from oodles.cli.common import notice
from oodles.cli.guards import load_with_model
from oodles.cli.options import GuardOptions
from oodles.errors import ArgumentError


def export(
    out: Annotated[Path, Option(help="File to write, which ends in .zip.")],
    given: GuardOptions,
    guard: Annotated[
        Path | None,
        Argument(
            help="A folder made by oodles fit. Without it: that of a small CIFAR-10 network that comes with oodles."
        ),
    ] = None,
    images: Annotated[
        Path | None,
        Option(help="Some ID images: torch and onnxruntime are compared on 64 of them. Default: made-up images."),
    ] = None,
    force: Annotated[bool, Option("--force", help="Replace the exported guard that is already there.")] = False,
) -> None:
    """Write a guard with its model as one ONNX graph, which `oodles score` and Guard.open run without PyTorch.

    The graph takes uint8 pixels of any size: resizing, network, detector and threshold are inside. If the guard does
    not know how images were preprocessed, and no option says it, the graph takes the model's own inputs. It is written
    only if it gives the guard's own answers.

    Example: oodles export guard --model mynets:resnet18 --checkpoint r18.pt --images photos/val --out guard.zip
    """
    if guard is not None:
        check_guard(guard)

    from oodles.deploy.artefact import check_free

    check_free(out, force)

    from oodles.data.loaders import ImageLoader
    from oodles.data.readers import open_files, open_images
    from oodles.data.transforms import file_bytes
    from oodles.deploy.saved import known_transform

    guarded = load_with_model(guard, given)
    transform = known_transform(out if guard is None else guard, guarded.preprocessing, given.given())
    reads = transform or file_bytes(guarded.preprocessing)
    inputs = None
    if reads is not None:
        guarded.preprocessing = reads.as_record()
        if images is not None:
            opened = open_images(images) if transform is not None else open_files(images)
            inputs = ImageLoader(opened, reads, labels=False, skip_bad=True, batch_size=64)
    elif images is not None or given.given():
        raise ArgumentError(f"{guard} does not record how images were preprocessed; give --size, --mean and --std")
    exported = guarded.export(out, inputs=inputs, overwrite=force)
    agreement = exported.record["agreement"]
    what = "images" if images is not None else "made-up inputs (--images compares on real ones)"
    notice(
        f"{exported.detector}: exported to {out}; on {agreement['rows']} {what} torch and onnxruntime decide the same "
        f"and differ by at most {agreement['score']:.1g} in the score, relatively"
    )
