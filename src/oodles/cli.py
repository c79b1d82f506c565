"""The ``oodles`` command. Heavy imports wait until a command runs, so that help appears at once."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from oodles.errors import ArgumentError, DataError, OodlesError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from oodles.bench.datasets import ImageLoader, ImageSet, Transform
    from oodles.features import Features

app = typer.Typer(
    name="oodles",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Tells when a classifier is looking at something it was never trained on, without retraining it.",
    epilog="Start with [bold]oodles demo[/bold]. Exit codes: 0 done, 2 something is wrong with what was given "
    "(one line says what), 130 interrupted.",
)
console = Console()
notices = Console(stderr=True)

ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        help="Your classifier: [bold]package.module:factory[/bold], with arguments if it takes any, "
        "e.g. mynets:resnet(num_classes=10). The current folder is on the path.",
    ),
]
CheckpointOption = Annotated[
    Path | None,
    typer.Option(help="Its weights: a state dict (.pt, .pth, .safetensors). Read so that no code in it can run."),
]
LayerOption = Annotated[
    str | None, typer.Option(help="Name of the last linear layer, where it is not found by itself.")
]
SizeOption = Annotated[int, typer.Option(help="Side of the network's input: shorter side to --resize, centre crop.")]
ResizeOption = Annotated[int | None, typer.Option(help="Shorter side before the crop; --size unless given.")]
MeanOption = Annotated[str, typer.Option(help="Mean of each channel, 0 to 1, comma-separated.")]
StdOption = Annotated[str, typer.Option(help="Standard deviation of each channel, comma-separated.")]
SkipOption = Annotated[bool, typer.Option("--skip-bad", help="Leave unreadable images out instead of stopping.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
DetectorOption = Annotated[
    list[str] | None,
    typer.Option("--detector", help="Stages joined by +, e.g. 'react(90)+dice(0.7)+energy'. May be given again."),
]
IMAGENET_MEAN, IMAGENET_STD = "0.485,0.456,0.406", "0.229,0.224,0.225"


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
        _transform(size, resize, mean, std),
        labels=labels,
        skip_bad=skip_bad,
    )
    network = _model(model, checkpoint)
    dtype = torch.float16 if half else torch.float32
    features = run(network, loader, layer=layer, device=device, dtype=dtype, labels=labels, store=out, note=str(images))
    _tell_skipped(loader)
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

        loader = ImageLoader(open_images(inputs), _transform(size, resize, mean, std), labels=False, skip_bad=skip_bad)
        if model is None:
            raise ArgumentError(f"{inputs} holds images, so --model and --checkpoint are needed to look at them")
        network = _model(model, checkpoint)
        if record["model"] not in (None, model_fingerprint(network)):
            raise DataError(f"{guard} was fitted on another model than {model} with these weights")
        features = run(network, loader, layer=record["layer"])
        names = loader.names
        _tell_skipped(loader)
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
def bench(
    suite: Annotated[
        str | None, typer.Argument(help="cifar10 or cifar100: the paper's sets below --data and its network.")
    ] = None,
    data: Annotated[Path, typer.Option(help="Folder with the suite's archives, unpacked.")] = Path("data"),
    model: Annotated[str | None, typer.Option(help="Your classifier, package.module:factory.")] = None,
    checkpoint: CheckpointOption = None,
    train: Annotated[Path | None, typer.Option(help="ID training images.")] = None,
    test: Annotated[Path | None, typer.Option(help="ID test images.")] = None,
    ood: Annotated[list[str] | None, typer.Option(help="OOD images as NAME=PATH; may be given again.")] = None,
    without: Annotated[
        list[str] | None, typer.Option(help="Leave an OOD set of the suite out; may be given again.")
    ] = None,
    detector: DetectorOption = None,
    store: Annotated[Path | None, typer.Option(help="Keep the features here and reuse them next time.")] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many images of each set, chosen at random.")] = None,
    intervals: Annotated[bool, typer.Option("--intervals", help="Add 95 % bootstrap intervals to the rows.")] = False,
    layer: LayerOption = None,
    size: SizeOption = 224,
    resize: ResizeOption = None,
    mean: MeanOption = IMAGENET_MEAN,
    std: StdOption = IMAGENET_STD,
    device: Annotated[str | None, typer.Option(help="e.g. cuda; the CPU unless given.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the rows to this JSON file too.")] = None,
    skip_bad: SkipOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare detectors on your model, or on a suite of the paper: FPR95 and AUROC per OOD set.

    The network runs once per image, whatever the number of detectors.

    Examples: oodles bench cifar10 --data DIR --checkpoint densenet101-cifar10.pth.tar

    oodles bench --model mynets:resnet18 --checkpoint r18.pt --train imgs/train --test imgs/test
    --ood sketches=imgs/sketches
    """
    from oodles.bench import benchmark
    from oodles.bench import suite as find_suite
    from oodles.bench.datasets import ImageLoader, open_images
    from oodles.bench.report import print_table, write_json
    from oodles.detectors import detector_list, parse
    from oodles.extraction import extract as run

    detectors = [parse(text) for text in detector] if detector else detector_list()
    sets: dict[str, ImageSet] = {}
    chosen = find_suite(suite) if suite else None
    if chosen is not None:
        sets["train"], sets["test"] = chosen.open_id(data)
        sets |= {name: images for name, images in chosen.open_ood(data).items() if name not in (without or [])}
        if chosen.missing(data):
            notices.print(f"not under {data}: {', '.join(chosen.missing(data))}")
    for name, path in {"train": train, "test": test, **_named_paths(ood or [])}.items():
        if path is not None:
            sets[name] = open_images(path)
    transform = chosen.transform if chosen is not None else _transform(size, resize, mean, std)
    factory = model or (chosen.model if chosen is not None else None)
    if factory is None or "train" not in sets or "test" not in sets or len(sets) < 3:
        raise ArgumentError("bench needs a suite, or --model, --train, --test and at least one --ood NAME=PATH")
    network = _model(factory, checkpoint)
    features: dict[str, Features] = {}
    for name, images in sets.items():
        notices.print(f"{name}: {min(len(images), limit or len(images)):,} images")
        is_id = name in ("train", "test")
        loader = ImageLoader(images.sample(limit), transform, labels=is_id, skip_bad=skip_bad)
        home = None if store is None else store / name
        features[name] = run(network, loader, layer=layer, device=device, labels=is_id, store=home, note=images.name)
        _tell_skipped(loader)
    trained, tested = features.pop("train"), features.pop("test")
    id_set = chosen.name if chosen is not None else "id"
    rows = benchmark(
        detectors, train=trained, test=tested, ood=features, id_set=id_set, bootstrap=1000 if intervals else 0
    )
    if out is not None:
        write_json(rows, out)
    if as_json:
        typer.echo(json.dumps([row.as_dict() for row in rows]))
        return
    title = id_set
    if tested.labels is not None:
        title += f": accuracy {_accuracy(tested.logits, tested.labels):.2%} on {len(tested):,} test images"
    print_table(console, rows, title=title, paper=chosen.name if chosen is not None else None)


@app.command()
def detectors() -> None:
    """List the stages a detector can be made of, and the named detectors."""
    from oodles.detectors import STAGES, detector_list

    for name, stage in STAGES.items():
        typer.echo(f"{name:16} {(stage.__doc__ or '').strip().splitlines()[0]}")
    typer.echo("\nfor example:\n" + "\n".join(f"  {detector.spec}" for detector in detector_list()))


def main() -> None:
    """Run the command; what is wrong with the input ends in one line and exit code 2."""
    try:
        app()
    except OodlesError as error:
        notices.print(f"[bold red]error[/bold red] {_plain(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        notices.print("interrupted")
        sys.exit(130)
    except OSError as error:
        notices.print(f"[bold red]error[/bold red] {_plain(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(2)


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(" ".join(text.split()))


def _model(factory: str, checkpoint: Path | None) -> "nn.Module":
    from oodles.models import build_model, load_checkpoint

    model = build_model(factory)
    if checkpoint is None:
        notices.print(f"no --checkpoint: {factory} is taken as it comes")
    else:
        load_checkpoint(model, checkpoint)
    return model.eval()


def _transform(size: int, resize: int | None, mean: str, std: str) -> "Transform":
    from oodles.bench.datasets import Transform

    return Transform(size, resize or size, _channels("mean", mean), _channels("std", std))


def _channels(name: str, text: str) -> tuple[float, float, float]:
    try:
        red, green, blue = (float(part) for part in text.split(","))
    except ValueError:
        raise ArgumentError(f"--{name} {text!r} must be three numbers, e.g. {IMAGENET_MEAN}") from None
    return red, green, blue


def _named_paths(pairs: list[str]) -> dict[str, Path]:
    named = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not equals or not name or not path or name in ("train", "test"):
            raise ArgumentError(f"--ood {pair!r} must be NAME=PATH, NAME being neither train nor test")
        named[name] = Path(path)
    return named


def _split(features: "Features") -> tuple["Features", "Features"]:
    """Four fifths to fit on and a fifth to calibrate on, by a fixed shuffle."""
    import torch

    if len(features) < 100:
        raise DataError(f"{features} is too small to keep a fifth out for the threshold; give --held-out")
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(0))
    cut = len(features) // 5
    return features[order[cut:].sort().values], features[order[:cut].sort().values]


def _accuracy(logits: "Tensor", labels: "Tensor") -> float:
    return float(logits.argmax(dim=1).eq(labels).double().mean())


def _tell_skipped(loader: "ImageLoader") -> None:
    if loader.bad:
        notices.print(_plain(f"left out: {loader.complaint()}"))
