"""``select``: which detector for this network."""

import json
from pathlib import Path
from typing import Annotated

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
    load_model,
    notices,
    plain,
    tell_skipped,
    transform,
)

SHOWN = 12


@app.command()
def select(
    images: Annotated[Path, typer.Argument(help="ID training images, to fit on.")],
    held_out: Annotated[Path, typer.Option(help="ID images the network was not trained on.")],
    model: ModelOption,
    checkpoint: CheckpointOption = None,
    detector: Annotated[
        list[str] | None,
        typer.Option(help="A candidate, e.g. 'knn(50)' or 'scale(85)', instead of the usual ones; may be given again."),
    ] = None,
    count: Annotated[int, typer.Option(help="How many stand-ins of each kind to make.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the stand-ins and of the resampling.")] = 0,
    limit: Annotated[int | None, typer.Option(help="At most so many images of each set, chosen at random.")] = None,
    layer: LayerOption = None,
    size: SizeOption = 224,
    resize: ResizeOption = None,
    mean: MeanOption = IMAGENET_MEAN,
    std: StdOption = IMAGENET_STD,
    device: Annotated[str | None, typer.Option(help="e.g. cuda; the CPU unless given.")] = None,
    skip_bad: SkipOption = False,
    as_json: JsonOption = False,
) -> None:
    """Choose the detector for your network, from ID images alone.

    Stand-ins for the unknown are made of the held-out images: noise, means of two images, jigsaws, speckle, inverted
    and moved channels. The detector that ranks best over these kinds and badly on none is chosen (its worth is the mean
    of its mean and its worst rank, 0 to 1); in doubt, the default stays.

    Example: oodles select photos/train --held-out photos/val --model mynets:resnet18 --checkpoint r18.pt
    """
    from oodles.bench.datasets import ImageLoader, open_images
    from oodles.choice import outlier_features
    from oodles.choice import select as choose
    from oodles.extraction import extract

    how = transform(size, resize, mean, std)
    loaders = [ImageLoader(open_images(path).sample(limit), how, skip_bad=skip_bad) for path in (images, held_out)]
    network = load_model(model, checkpoint)
    train, held = (extract(network, loader, layer=layer, device=device) for loader in loaders)
    for loader in loaders:
        tell_skipped(loader)
    outliers = outlier_features(
        network, loaders[1], mean=how.mean, std=how.std, count=count, seed=seed, layer=layer, device=device
    )
    found = choose(train=train, held_out=held, outliers=outliers, candidates=detector, seed=seed)
    if as_json:
        rows = [{"detector": row.spec, "worth": row.worth, "auroc": dict(row.auroc)} for row in found.candidates]
        record = {
            "detector": found.detector.spec,
            "certainty": found.certainty,
            "standard_error": found.standard_error,
            "verdict": found.verdict,
            "without": {kind: {"detector": spec, "rank": rank} for kind, (spec, rank) in found.without.items()},
            "candidates": rows,
        }
        typer.echo(json.dumps(record))
        return
    kinds = list(outliers)
    typer.echo(f"{'':44} {'worth':>10}  AUROC against {', '.join(kinds)}")
    chosen = [row for row in found.candidates if row.spec == found.detector.spec]
    for row in [*chosen, *(other for other in found.candidates[:SHOWN] if other not in chosen)]:
        cells = " ".join(f"{100 * row.auroc[kind]:5.1f}" for kind in kinds)
        typer.echo(f"{row.spec:44} {row.worth:10.3f}  {cells}{'  <- chosen' if row in chosen else ''}")
    for kind, (spec, rank) in found.without.items():
        typer.echo(f"without {kind}: {spec}, which then beats {rank:.0%} of the others on it")
    notices.print(plain(found.verdict))
