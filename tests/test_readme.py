"""The README: its lines for one's own model run on vision, text and tables, its numbers and links are right."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import torch
from support import torchvision_operators  # noqa: F401  (before transformers, which imports torchvision)
from support.serving import command, environment, running
from support.site import blocks
from support.site_data import images, table, vision_model, write_workspace
from torch import nn
from torch.nn import functional as F
from typer.testing import CliRunner

from oodles import cli

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
ROWS, CLASSES = 400, 3


class Tabular(nn.Module):
    def __init__(self):
        super().__init__()
        self.category = nn.Embedding(5, 4)
        self.body = nn.Linear(10, 24)
        self.head = nn.Linear(24, CLASSES)

    def forward(self, numbers, category):
        return self.head(F.relu(self.body(torch.cat([numbers, self.category(category)], dim=1))))


def text_model():
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return BertForSequenceClassification(BertConfig(vocab_size=50, num_labels=CLASSES, **sizes))


def text_batch(rows):
    mask = torch.ones(rows, 8, dtype=torch.long)
    mask[: rows // 2, 5:] = 0
    labels = torch.randint(0, CLASSES, (rows,))
    return {"input_ids": torch.randint(1, 50, (rows, 8)), "attention_mask": mask, "labels": labels}


def snippet():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    return next(block for block in blocks if "ood.extract(" in block)


@pytest.mark.parametrize(
    ("model", "batch"),
    [(vision_model, images), (text_model, text_batch), (Tabular, table)],
    ids=["vision", "text", "tabular"],
)
def test_the_lines_work_unchanged(model, batch, tmp_path, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    given = {
        "model": model(),
        "train_loader": [batch(50) for _ in range(ROWS // 50)],
        "held_out_loader": [batch(50) for _ in range(4)],
        "batch": batch(7),
    }
    exec(snippet(), given)  # noqa: S102
    verdict = given["verdict"]
    assert verdict.logits.shape == (7, CLASSES)
    assert verdict.is_id.dtype == torch.bool
    assert torch.isfinite(verdict.score).all()
    assert (tmp_path / "guard" / "guard.json").is_file()


@pytest.mark.filterwarnings("ignore:the model's accuracy by these labels")  # of an untrained network
def test_the_commands_work_as_printed(tmp_path, monkeypatch):
    """One after another, in a folder with the images, the module and the checkpoint that they name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write_workspace(tmp_path)
    block = next(block.text for block in blocks(README) if "oodles fit" in block.text)
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert {line[1] for line in lines} >= {"extract", "fit", "score", "explain", "export", "serve", "monitor", "report"}
    for program, *arguments in lines:
        assert program == "oodles"
        if arguments[0] == "serve":
            with running(command(*arguments[1:]), environment(OODLES_SERVE_PORT="0")) as server:
                assert server.score((tmp_path / "photos/new/1.jpg").read_bytes()).result["label"] is not None
            continue
        result = CliRunner().invoke(cli.app, arguments, catch_exceptions=False)
        assert result.exit_code == 0, f"{arguments}: {result.output}"
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_the_snippet_is_short():
    lines = [line for line in snippet().splitlines() if line.strip()]
    assert len(lines) <= 11, "ten lines and an import"


def test_links_are_absolute_and_lead_to_files_of_the_repository():
    repository = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    raw = repository.replace("//github.com/", "//raw.githubusercontent.com/") + "/main/"
    links = re.findall(r"\]\(([^)]+)\)", README.read_text())
    assert len(links) > 10
    for link in links:
        path = link.removeprefix(f"{repository}/blob/main/").removeprefix(raw)
        assert path != link, f"{link} does not begin with {repository}/blob/main/ or {raw}"
        assert (ROOT / path).is_file(), link


def test_results_are_those_of_the_reproduction():
    """FPR95 as measured, and in brackets as published."""
    page = (ROOT / "docs" / "reproduction.md").read_text()
    names = {"MSP": "msp", "ODIN": "odin(epsilon=0.004, std=", "energy": "energy"}
    names |= {"ReAct": "react(90)", "DICE": "dice(0.9)"}
    lines = [line.strip("| ").split(" | ") for line in README.read_text().splitlines() if re.search(r"\d \(\d", line)]
    assert len(lines) == len(names)
    for name, *cells in lines:
        expected = []
        for network in ("cifar10", "cifar100"):
            found = page.partition(f"\n## {network}\n")[2].partition("main comparison")[2].partition("\n\n*")[0]
            row = next(line for line in found.splitlines() if line.startswith(f"| {names[name.partition(',')[0]]}"))
            shown = (re.match(r"\**([\d.]+).*?<br>\(([\d.]+)/", cell) for cell in row.strip("| ").split(" | ")[1:4])
            expected += [f"{each[1]} ({each[2]})" for each in shown]
        assert cells == expected, name
