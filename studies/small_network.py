"""Write ``docs/cifar10-small.md``: every detector on the network that comes with the package.

The data must include ``cifar10-jpeg.zip``; ``--godin-run`` is the folder of the short DeConf training run that the page
describes. Every number on the page comes from this run or from the network's card.
"""

import json
from pathlib import Path
from typing import Any

from torch import nn

from oodles.bench.comparison import compare, results
from oodles.bench.run import Tables, run_tables
from oodles.bench.suites import CIFAR_ODIN
from oodles.bench.tables import markdown
from oodles.data.readers import ImageSet
from oodles.data.transforms import CIFAR
from oodles.detectors import detector_list, parse
from oodles.models import load, load_checkpoint, read_card, small_resnet
from oodles.network.forward import HeadName
from oodles.paper.published import AVERAGE
from studies import DATA, STORE
from studies.pages import write_page
from studies.sources import QUALITY, TRAIN_IMAGES, jpeg_sets

NAME = "cifar10-small"
EXTRA = (
    "react(97)",
    "dice(0.05)",
    "odin(epsilon=0.0)",
    CIFAR_ODIN,
    "iodin(epsilon=0.004)",
    "rankfeat(layer='stage3')",
    "gram(layers=('stage1', 'stage2', 'stage3'))",
    "adascale",
    "mahalanobis",
    "mahalanobis(layers=('stage1', 'stage2'))",
)


def main(data: Path = DATA, godin_run: Path = Path("runs/godin"), store: Path = STORE) -> None:
    """Measure both networks and write the page."""
    sets = jpeg_sets(data)
    specs = list(dict.fromkeys([*(each.spec for each in detector_list()), *(parse(text).spec for text in EXTRA)]))
    result, _ = measure(load(NAME), sets, specs, store / NAME)
    network = small_resnet(head_type="deconf")
    load_checkpoint(network, godin_run / "weights.safetensors")
    godin, epsilon = measure(network.eval(), sets, ["msp", "energy", "godin"], store / "godin-small", head=False)
    metrics = json.loads((godin_run / "training.json").read_text())["metrics"]
    card = read_card(NAME)
    write_page(
        NAME,
        name=NAME,
        card=describe(card),
        command=card["command"],
        train=f"{TRAIN_IMAGES:,}",
        quality=QUALITY,
        table=markdown(compare(result.rows["main"])).rstrip(),
        verdict=verdict(result),
        epochs=len(metrics),
        godin_command=(
            "oodles train small --head-type deconf --data DATA/cifar10-jpeg.zip/train "
            "--test DATA/cifar10-jpeg.zip/test --recipe godin "
            f"--epochs {len(metrics)} --batch-size 128 --limit 10000 --out runs/godin"
        ),
        first=f"{metrics[0]['loss']:.3f}",
        last=f"{metrics[-1]['loss']:.3f}",
        accuracy=f"{next(iter(godin.accuracy.values())):.1%}",
        epsilon=f"{epsilon:g}",
        godin_table=markdown(compare(godin.rows["main"])).rstrip(),
        godin_verdict=chance(godin),
    )


def measure(
    network: nn.Module, sets: dict[str, ImageSet], specs: list[str], store: Path, head: HeadName = None
) -> tuple[Tables, float | None]:
    """The main table of these detectors, and the size of the input step of the last one."""
    detectors = list(map(parse, specs))
    options: dict[str, Any] = {"model": network, "preprocessing": CIFAR, "store": store, "head": head, "tell": print}
    result = run_tables(["main"], sets, main=detectors, p=0.9, id_set="cifar10", **options)
    return result, getattr(detectors[-1], "step_size", None)


def describe(card: dict[str, object]) -> str:
    """The card as a list, without what the page says elsewhere."""
    left_out = ("name", "command", "preprocessing", "classes")
    shown = {key: value for key, value in card.items() if key not in left_out}
    for key, value in shown.items():
        if isinstance(value, dict):
            shown[key] = ", ".join(f"{name} {part}" for name, part in value.items() if part not in ([], False))
    return "\n".join(f"- **{key}**: {value}" for key, value in shown.items())


def verdict(result: Tables) -> str:
    """Which detector is best on average, and whether DICE improves on energy."""
    gathered = results(result.rows["main"])
    averages = {spec: found.mean("fpr95") for (spec, ood_set), found in gathered.items() if ood_set == AVERAGE}
    best = min(averages, key=lambda spec: averages[spec])
    energy, dice = averages["energy"], averages["dice(0.9)+energy"]
    word = "better" if dice < energy else "worse"
    return (
        f"The lowest average FPR95 is that of {best}, {averages[best]:.1f}. DICE at p = 0.9 ({dice:.1f}) is {word} "
        f"than plain energy ({energy:.1f}) on this network."
    )


def chance(result: Tables) -> str:
    """Whether Generalized ODIN is better than chance, an AUROC of 50, on every set."""
    rows = {row.ood_set: 100 * row.auroc for row in result.rows["main"] if row.detector == "godin"}
    below = [name for name, auroc in rows.items() if auroc <= 50]
    if below:
        return f"It is not better than chance on {', '.join(below)}."
    return f"It is better than chance on every set: its smallest AUROC is {min(rows.values()):.1f}."
