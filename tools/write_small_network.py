"""Write ``docs/cifar10-small.md``: ``python tools/write_small_network.py DATA GODIN_RUN``.

DATA holds the archives unpacked and ``cifar10-jpeg.zip``; GODIN_RUN is the folder of the short DeConf training run the
page describes. Every number on the page comes from this run or from the shipped card.
"""

import argparse
import io
import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from PIL import Image
from torch import nn

from oodles.bench.datasets import CIFAR
from oodles.bench.experiment import Extraction, Tables, run_tables
from oodles.bench.paper import AVERAGE
from oodles.bench.readers import ImageSet, open_images
from oodles.bench.report import compare, markdown, results
from oodles.bench.suites import CIFAR_ODIN, SUITES
from oodles.detectors import detector_list, parse
from oodles.models import load, load_checkpoint, read_card, small_resnet

DOCS = Path(__file__).parent.parent / "docs"
NAME = "cifar10-small"
QUALITY = 75
TRAIN_IMAGES = 10_000
EXTRA = (
    "react(97)",
    "dice(0.05)",
    "odin(epsilon=0.0)",
    CIFAR_ODIN,
    "adascale",
    "mahalanobis",
    "mahalanobis(layers=('stage1', 'stage2'))",
)

PAGE = """# cifar10-small

A network of our own, so that `oodles` has something to look with when you have no model at hand, and a second
architecture to measure detectors on. `oodles.models.load("{name}")` gives it, `oodles score photo.jpg` uses it.

{card}

Trained by

```
{command}
```

and made into what is shipped by `python tools/ship_small_network.py runs/cifar10-small DATA`.

## Detectors on it

ID is the JPEG test split; to fit on, {train:,} images chosen from the training split. The OOD sets are re-encoded as JPEG of
quality {quality} as well, so that compression is not what gives them away. `make small-network` writes this page.

{table}

{verdict}

## Generalized ODIN, a short run

The paper trains Generalized ODIN for 200 epochs with a DeConf-C head; that is out of reach on two cores. The recipe is here
(`oodles train densenet101 --recipe godin --head deconf`), the paper's row was not trained here. What was: {epochs} epochs of

```
{godin_command}
```

The training loss fell from {first:.3f} to {last:.3f}, and {accuracy:.1%} of the JPEG test images are labelled right. The input step, chosen on
1,000 ID images by the largest mean score as its authors do, is {epsilon:g}.

{godin_table}

{godin_verdict}
"""


def main() -> None:
    """Measure both networks and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("godin", type=Path)
    parser.add_argument("--store", type=Path, default=Path("oodles-store"), help="where features are kept")
    arguments = parser.parse_args()
    archive = arguments.data / "cifar10-jpeg.zip"
    sets = {"train": open_images(archive / "train").sample(TRAIN_IMAGES), "test": open_images(archive / "test")}
    sets |= {name: recompressed(part) for name, part in SUITES["cifar10"].open_ood(arguments.data).items()}
    specs = list(dict.fromkeys([*(each.spec for each in detector_list()), *(parse(text).spec for text in EXTRA)]))
    result, _ = measure(load(NAME), sets, specs, arguments.store / NAME)
    network = small_resnet(head="deconf")
    load_checkpoint(network, arguments.godin / "weights.safetensors")
    godin, epsilon = measure(
        network.eval(), sets, ["msp", "energy", "godin"], arguments.store / "godin-small", layer=False
    )
    metrics = json.loads((arguments.godin / "training.json").read_text())["metrics"]
    card = read_card(NAME)
    page = PAGE.format(
        name=NAME,
        card=describe(card),
        command=card["command"],
        train=TRAIN_IMAGES,
        quality=QUALITY,
        table=markdown(compare(result.rows["main"])),
        verdict=verdict(result),
        epochs=len(metrics),
        godin_command=(
            "oodles train small --head deconf --data DATA/cifar10-jpeg.zip/train --test DATA/cifar10-jpeg.zip/test "
            f"--recipe godin --epochs {len(metrics)} --batch 128 --limit 10000 --out runs/godin"
        ),
        first=metrics[0]["loss"],
        last=metrics[-1]["loss"],
        accuracy=next(iter(godin.accuracy.values())),
        epsilon=epsilon,
        godin_table=markdown(compare(godin.rows["main"])),
        godin_verdict=chance(godin),
    )
    (DOCS / f"{NAME}.md").write_text(page)
    print(f"written: {DOCS / f'{NAME}.md'}")


def recompressed(images: ImageSet) -> ImageSet:
    """The same images, each written as JPEG and read again."""

    def read(row: int) -> Image.Image:
        buffer = io.BytesIO()
        images.read(row).convert("RGB").save(buffer, format="JPEG", quality=QUALITY)
        return Image.open(buffer)

    return replace(images, read=read)


def measure(
    network: nn.Module, sets: dict[str, ImageSet], specs: list[str], store: Path, layer: bool | None = None
) -> tuple[Tables, float | None]:
    """The main table of these detectors, and the input step the last of them chose."""
    extraction = Extraction(CIFAR, store, layer=layer, tell=print)
    deep = [detector for detector in map(parse, specs) if detector.needs_network]
    passes = extraction.passes(network, sets, deep)
    features = extraction.features(network, sets)
    result = run_tables(["main"], features, main=specs, p=0.9, id_set="cifar10", deep=deep, passes=passes)
    return result, getattr(deep[-1], "chosen", None)


def describe(card: dict[str, object]) -> str:
    """The card as a list, less what the page says elsewhere."""
    left_out = ("name", "command", "prepared", "classes")
    shown = {key: value for key, value in card.items() if key not in left_out}
    for key, value in shown.items():
        if isinstance(value, dict):
            shown[key] = ", ".join(f"{name} {part}" for name, part in value.items() if part not in ([], False))
    return "\n".join(f"- **{key}**: {value}" for key, value in shown.items())


def verdict(result: Tables) -> str:
    """Who wins on average, and where DICE stands."""
    gathered = results(result.rows["main"])
    averages = {spec: fmean(found.fpr95) for (spec, ood_set), found in gathered.items() if ood_set == AVERAGE}
    best = min(averages, key=lambda spec: averages[spec])
    energy, dice = averages["energy"], averages["dice(0.9)+energy"]
    stands = "wins against" if dice < energy else "loses to"
    return (
        f"Lowest average FPR95: {best} with {averages[best]:.1f}. DICE at p = 0.9 ({dice:.1f}) {stands} plain energy "
        f"({energy:.1f}) on this network."
    )


def chance(result: Tables) -> str:
    """Whether Generalized ODIN beats chance, which is an AUROC of 50, on every set."""
    rows = {row.ood_set: 100 * row.auroc for row in result.rows["main"] if row.detector == "godin"}
    below = [name for name, auroc in rows.items() if auroc <= 50]
    if below:
        return f"It does not beat chance on {', '.join(below)}."
    return f"It beats chance on every set: AUROC {min(rows.values()):.1f} at the least."


if __name__ == "__main__":
    main()
