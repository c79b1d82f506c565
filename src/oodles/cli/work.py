"""From images to verdicts: ``demo``, ``extract``, ``fit``, ``score``, ``detectors``."""

import json
from dataclasses import asdict
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
    plain,
    tell_skipped,
    transform,
)
from oodles.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from oodles.bench.datasets import Transform
    from oodles.files import Record

OURS = "cifar10-small"
"""The network that looks at pictures when the user has named none."""


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
    needed_by: Annotated[
        list[str] | None,
        typer.Option(
            "--for", help="Keep the inner layers and input steps this detector needs, e.g. 'odin(1000, 0.004)'."
        ),
    ] = None,
    half: Annotated[bool, typer.Option("--half", help="Store float16: half the size.")] = False,
    limit: Annotated[int | None, typer.Option(help="Only so many images, chosen at random.")] = None,
    device: Annotated[str | None, typer.Option(help="e.g. cuda; the CPU unless given.")] = None,
    skip_bad: SkipOption = False,
) -> None:
    """Run your model once over images and keep its embeddings and logits.

    What follows works on the result: fit needs no network, and score none for features extracted before.

    Example: oodles extract photos/train --model mynets:resnet18 --checkpoint r18.pt --out features/train
    """
    import torch

    from oodles.bench.datasets import ImageLoader, open_images
    from oodles.detectors import parse
    from oodles.extraction import extract as run
    from oodles.tuning import layers_of, steps_of

    loader = ImageLoader(
        open_images(images).sample(limit),
        transform(size, resize, mean, std),
        labels=labels,
        skip_bad=skip_bad,
    )
    network = load_model(model, checkpoint)
    needing = [parse(text) for text in needed_by or []]
    dtype = torch.float16 if half else torch.float32
    how = asdict(loader.transform)
    features = run(
        network,
        loader,
        layer=layer,
        layers=layers_of(needing),
        steps=steps_of(needing),
        device=device,
        dtype=dtype,
        labels=labels,
        store=out,
        note=str(images),
        prepared={name: list(value) if isinstance(value, tuple) else value for name, value in how.items()},
    )
    tell_skipped(loader)
    notices.print(plain(f"{features} in {out}"))


@app.command()
def fit(
    features: Annotated[Path, typer.Argument(help="ID training features, made by oodles extract.")],
    out: Annotated[Path, typer.Option("--out", help="Where the fitted guard goes: a folder.")],
    detector: Annotated[
        str | None,
        typer.Option(help="Stages joined by +, e.g. 'react(90)+dice(0.7)+energy', or a name `oodles detectors` lists."),
    ] = None,
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
    from oodles.calibration import calibrate, keep_apart
    from oodles.detectors import default_detector, parse
    from oodles.features import Features
    from oodles.guard import save_guard
    from oodles.store import read_manifest

    fitted = default_detector() if detector is None else parse(detector)
    train = Features.load(features)
    about = read_manifest(features)["about"]
    if held_out is None:
        train, held = keep_apart(train)
        notices.print(
            f"threshold from {len(held)} training rows kept out of the fit; a network fits its training images "
            "better than new ones, so --held-out is the better choice"
        )
    else:
        held = Features.load(held_out)
        if read_manifest(held_out)["about"].get("model") != about.get("model"):
            raise DataError(f"{held_out} holds features of another model than {features}; extract both with the same")
    fitted.fit(train)
    for remark in fitted.remarks:
        notices.print(plain(remark))
    if not fitted.tuned:
        raise ArgumentError(
            f"{fitted.spec} is yet to be tuned on held-out images, which fit does not do; see oodles.tune in Python"
        )
    threshold = calibrate(fitted.score(held), id_rate)
    save_guard(out, fitted, threshold, about.get("model"), about.get("layer"), about.get("prepared"))
    rate = f"{100 * id_rate:g} % of ID"
    notices.print(plain(f"{fitted.spec}: ID is a score of at least {threshold.value:.7g} ({rate}); in {out}"))


@app.command()
def score(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="[GUARD] INPUTS",
            help="A folder made by oodles fit, then an image, a folder of images, or features made by oodles extract. "
            "Without a guard: a small CIFAR-10 network that comes with oodles.",
        ),
    ],
    model: Annotated[str | None, typer.Option(help="Needed for images: package.module:factory.")] = None,
    checkpoint: CheckpointOption = None,
    size: Annotated[int | None, typer.Option(help="As given to extract, which the guard remembers.")] = None,
    resize: ResizeOption = None,
    mean: Annotated[str | None, typer.Option(help="As given to extract.")] = None,
    std: Annotated[str | None, typer.Option(help="As given to extract.")] = None,
    device: Annotated[str | None, typer.Option(help="e.g. cuda; the CPU unless given.")] = None,
    skip_bad: SkipOption = False,
    as_json: JsonOption = False,
) -> None:
    """Label and score inputs, and say which are in-distribution.

    Example: oodles score guard photos/new --model mynets:resnet18 --checkpoint r18.pt

    To try it without a model of your own: oodles score photo.jpg
    """
    from oodles.extraction import extract as run
    from oodles.extraction import model_fingerprint
    from oodles.features import Features
    from oodles.guard import read_guard
    from oodles.models import load, read_card
    from oodles.models.shipped import GUARD, shipped_folder
    from oodles.store import is_store, read_manifest

    if len(paths) > 2:
        raise ArgumentError(f"score takes a guard and one input, got {len(paths)} paths; put the images in a folder")
    own = len(paths) == 2
    guard, inputs = (paths[0] if own else shipped_folder(OURS) / GUARD), paths[-1]
    if not own and (model is not None or (inputs / "guard.json").exists()):
        raise ArgumentError(f"score needs a guard and what to look at, got {inputs} alone; fit a guard first")
    detector, threshold, record = read_guard(guard)
    classes: list[str] = [] if own else read_card(OURS)["classes"]
    if is_store(inputs):
        features = Features.load(inputs)
        origin = read_manifest(inputs)["about"].get("model")
        if None not in (origin, record["model"]) and origin != record["model"]:
            raise DataError(f"{inputs} holds features of another model than {guard} was fitted on")
        names = [f"row {row}" for row in range(len(features))]
    else:
        from oodles.bench.datasets import ImageLoader, open_images

        how = _remembered(record["prepared"], size, resize, mean, std, guard)
        loader = ImageLoader(open_images(inputs), how, labels=False, skip_bad=skip_bad)
        if own and model is None:
            raise ArgumentError(f"{inputs} holds images, so --model and --checkpoint are needed to look at them")
        network = load(OURS) if model is None else load_model(model, checkpoint)
        if not own:
            _introduce()
        if record["model"] not in (None, model_fingerprint(network)):
            raise DataError(f"{guard} was fitted on another model than {model} with these weights")
        features = run(
            network, loader, layer=record["layer"], layers=detector.layers, steps=detector.steps(), device=device
        )
        names = loader.names
        tell_skipped(loader)
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
    notices.print(f"{int(accepted.sum())} of {len(names)} in-distribution ({detector.spec} >= {threshold.value:.7g})")


@app.command()
def detectors() -> None:
    """List the stages a detector can be made of, and the named detectors."""
    from oodles.detectors import STAGES, WHOLES, default_detector, detector_list

    for title, group in (("stages, to be joined by +", STAGES), ("detectors that stand alone", WHOLES)):
        typer.echo(f"{title}:")
        for name, stage in group.items():
            typer.echo(f"  {name:16} {(stage.__doc__ or '').strip().splitlines()[0].replace('``', '')}")
    typer.echo("for example:\n" + "\n".join(f"  {detector.spec}" for detector in detector_list()))
    typer.echo(f"{len(STAGES) + len(WHOLES)} names; where none is given, {default_detector().spec} is used")


def _introduce() -> None:
    """Say what the network is that nobody asked for."""
    from oodles.models import read_card

    card = read_card(OURS)
    notices.print(
        plain(
            f"no guard given: {OURS}, {card['what']} ({', '.join(card['classes'])}), "
            f"{card['test accuracy']:.1%} right on JPEG test images. Pictures are shrunk to 32 pixels."
        )
    )


def _remembered(
    prepared: "Record | None", size: int | None, resize: int | None, mean: str | None, std: str | None, guard: Path
) -> "Transform":
    """How images are prepared: as for the features the guard was fitted on, which other options must not contradict."""
    from oodles.bench.datasets import Transform

    given = (size, resize, mean, std) != (None, None, None, None)
    known = None
    if prepared is not None:
        channels = {name: tuple(prepared[name]) for name in ("mean", "std")}
        known = Transform(prepared["size"], prepared["resize"], channels["mean"], channels["std"])
    if known is not None and not given:
        return known
    asked = transform(size or 224, resize, mean or IMAGENET_MEAN, std or IMAGENET_STD)
    if known is not None and asked != known:
        raise ArgumentError(
            f"{guard} was fitted on images prepared otherwise ({known}); leave --size, --mean, --std out"
        )
    return asked
