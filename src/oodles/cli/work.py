"""From images to verdicts: ``demo``, ``extract``, ``fit``, ``score``, ``detectors``."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oodles.cli.base import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    CheckpointOption,
    JsonOption,
    LayerOption,
    MeanOption,
    ModelOption,
    ResizeOption,
    SizeOption,
    SkipOption,
    StdOption,
    app,
    console,
    load_model,
    notices,
    tell_skipped,
    transform,
)
from oodles.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from oodles.features import Features


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the rows (JSON) and the histograms (PNG).")] = Path(
        "oodles-demo"
    ),
) -> None:
    """Real results in seconds: every detector on shipped features of real images.

    Nothing is downloaded. The features are those of a CIFAR-10 network for CIFAR-10, SVHN, Textures and
    Places images; the table tells which detector separates them best.
    """
    from oodles.demo import run_demo

    run_demo(out, console)


@app.command()
def extract(
    images: Annotated[Path, typer.Argument(help="A folder of images (or a CIFAR batch, or an SVHN .mat file).")],
    out: Annotated[Path, typer.Option("--out", help="Where the features go: a folder. Goes on where it stopped.")],
    model: ModelOption,
    checkpoint: CheckpointOption = None,
    layer: LayerOption = None,
    size: SizeOption = 224,
    resize: ResizeOption = None,
    mean: MeanOption = IMAGENET_MEAN,
    std: StdOption = IMAGENET_STD,
    labels: Annotated[
        bool, typer.Option(help="Take class folders as labels; --no-labels for data of other classes.")
    ] = True,
    half: Annotated[bool, typer.Option("--half", help="Store float16: half the size.")] = False,
    limit: Annotated[int | None, typer.Option(help="Only so many images, chosen at random.")] = None,
    device: Annotated[str | None, typer.Option(help="e.g. cuda; the CPU unless given.")] = None,
    skip_bad: SkipOption = False,
) -> None:
    """Run your model once over images and keep its embeddings and logits.

    Everything else works on the result: fit, score and bench never need the network again.

    Example: oodles extract photos/train --model mynets:resnet18 --checkpoint r18.pt --out features/train
    """
    import torch

    from oodles.bench.datasets import ImageLoader, open_images
    from oodles.extraction import extract as run

    loader = ImageLoader(
        open_images(images).sample(limit),
        transform(size, resize, mean, std),
        labels=labels,
        skip_bad=skip_bad,
    )
    network = load_model(model, checkpoint)
    dtype = torch.float16 if half else torch.float32
    features = run(network, loader, layer=layer, device=device, dtype=dtype, labels=labels, store=out, note=str(images))
    tell_skipped(loader)
    notices.print(f"{features} in {out}")


@app.command()
def fit(
    features: Annotated[Path, typer.Argument(help="ID training features, made by oodles extract.")],
    out: Annotated[Path, typer.Option("--out", help="Where the fitted guard goes: a folder.")],
    detector: Annotated[
        str, typer.Option(help="Stages joined by +, e.g. 'react(90)+dice(0.7)+energy'.")
    ] = "dice(0.9)+energy",
    held_out: Annotated[
        Path | None,
        typer.Option(
            help="ID features not used in training, for the threshold. Without: a fifth of the training rows."
        ),
    ] = None,
    id_rate: Annotated[float, typer.Option(help="Share of ID inputs that should be accepted.")] = 0.95,
) -> None:
    """Fit a detector on ID features and set its threshold.

    Example: oodles fit features/train --held-out features/val --detector 'dice(0.7)' --out guard
    """
    from oodles.calibration import calibrate
    from oodles.detectors import parse
    from oodles.features import Features
    from oodles.guard import save_guard
    from oodles.store import read_manifest

    fitted = parse(detector)
    train = Features.load(features)
    if held_out is None:
        train, held = _split(train)
        notices.print(
            f"threshold from {len(held)} training rows kept out of the fit; a network fits its training images "
            "better than new ones, so --held-out is the better choice"
        )
    else:
        held = Features.load(held_out)
    fitted.fit(train)
    threshold = calibrate(fitted.score(held), id_rate)
    about = read_manifest(features)["about"]
    save_guard(out, fitted, threshold, about.get("model"), about.get("layer"))
    notices.print(f"{fitted.spec}: ID is a score of at least {threshold.value:.4f} ({id_rate:.0%} of ID); in {out}")


@app.command()
def score(
    guard: Annotated[Path, typer.Argument(help="A folder made by oodles fit.")],
    inputs: Annotated[Path, typer.Argument(help="An image, a folder of images, or features made by oodles extract.")],
    model: Annotated[str | None, typer.Option(help="Needed for images: package.module:factory.")] = None,
    checkpoint: CheckpointOption = None,
    size: SizeOption = 224,
    resize: ResizeOption = None,
    mean: MeanOption = IMAGENET_MEAN,
    std: StdOption = IMAGENET_STD,
    skip_bad: SkipOption = False,
    as_json: JsonOption = False,
) -> None:
    """Label and score inputs, and say which are in-distribution.

    Example: oodles score guard photos/new --model mynets:resnet18 --checkpoint r18.pt
    """
    from oodles.extraction import extract as run
    from oodles.extraction import model_fingerprint
    from oodles.features import Features
    from oodles.guard import read_guard
    from oodles.store import is_store, read_manifest

    detector, threshold, record = read_guard(guard)
    if is_store(inputs):
        features = Features.load(inputs)
        origin = read_manifest(inputs)["about"].get("model")
        if None not in (origin, record["model"]) and origin != record["model"]:
            raise DataError(f"{inputs} holds features of another model than {guard} was fitted on")
        names = [f"row {row}" for row in range(len(features))]
    else:
        from oodles.bench.datasets import ImageLoader, open_images

        loader = ImageLoader(open_images(inputs), transform(size, resize, mean, std), labels=False, skip_bad=skip_bad)
        if model is None:
            raise ArgumentError(f"{inputs} holds images, so --model and --checkpoint are needed to look at them")
        network = load_model(model, checkpoint)
        if record["model"] not in (None, model_fingerprint(network)):
            raise DataError(f"{guard} was fitted on another model than {model} with these weights")
        features = run(network, loader, layer=record["layer"])
        names = loader.names
        tell_skipped(loader)
    scores = detector.score(features)
    accepted = threshold.is_id(scores)
    labels = features.logits.argmax(dim=1)
    verdicts = [
        {"input": name, "label": int(label), "score": float(value), "is_id": bool(verdict)}
        for name, label, value, verdict in zip(names, labels, scores, accepted, strict=True)
    ]
    if as_json:
        typer.echo(json.dumps({"detector": detector.spec, "threshold": threshold.value, "verdicts": verdicts}))
        return
    for verdict in verdicts:
        mark = "ID " if verdict["is_id"] else "OOD"
        typer.echo(f"{mark}  {verdict['score']:10.4f}  class {verdict['label']:<5} {verdict['input']}")
    notices.print(f"{int(accepted.sum())} of {len(names)} in-distribution ({detector.spec} >= {threshold.value:.4f})")


@app.command()
def detectors() -> None:
    """List the stages a detector can be made of, and the named detectors."""
    from oodles.detectors import STAGES, detector_list

    for name, stage in STAGES.items():
        typer.echo(f"{name:16} {(stage.__doc__ or '').strip().splitlines()[0]}")
    typer.echo("\nfor example:\n" + "\n".join(f"  {detector.spec}" for detector in detector_list()))


def _split(features: "Features") -> tuple["Features", "Features"]:
    """Four fifths to fit on and a fifth to calibrate on, by a fixed shuffle."""
    import torch

    if len(features) < 100:
        raise DataError(f"{features} is too small to keep a fifth out for the threshold; give --held-out")
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(0))
    cut = len(features) // 5
    return features[order[cut:].sort().values], features[order[:cut].sort().values]
