"""Heads of architectures from libraries and written by hand: each is found and right, or refused with a remedy."""

from pathlib import Path

import pytest
import torch
from support.architectures import ARCHITECTURES
from support.head_survey import Architecture, Found, SurveyError, survey
from support.networks import one_thread  # noqa: F401
from support.written_heads import Classifier, plain, vectors

PAGE = Path(__file__).parent.parent / "docs" / "architectures.md"


def identifier(architecture):
    return f"{architecture.library}: {architecture.name}"


def committed():
    """Every architecture in the page's tables, and the heading it is under."""
    results = {}
    heading = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        cells = [cell.strip() for cell in line.split(" | ")]
        if line.startswith("| ") and cells[0] != "| library":
            results[f"{cells[0].removeprefix('| ')}: {cells[1]}"] = (heading, cells)
    return results


@pytest.mark.parametrize("architecture", [each for each in ARCHITECTURES if not each.slow], ids=identifier)
def test_the_head_is_right_or_refused_with_a_remedy_as_the_page_says(architecture):
    result = survey(architecture)
    heading, cells = committed()[identifier(architecture)]
    assert heading == ("Found" if isinstance(result, Found) else "Refused")
    if isinstance(result, Found):
        assert cells[2:6] == [result.kind, f"`{result.layer}`", str(result.width), str(result.classes)]


def test_the_page_lists_every_architecture():
    names = [identifier(each) for each in ARCHITECTURES]
    assert len(set(names)) == len(names)
    assert sorted(committed()) == sorted(names)


def test_the_survey_notices_a_head_that_does_not_give_the_models_output():
    wrong = Architecture("", "twice", lambda: Classifier(plain), vectors, finish=lambda logits: 2 * logits)
    with pytest.raises(SurveyError, match="twice: fc differs from the model's output by"):
        survey(wrong)


@pytest.mark.parametrize(
    ("remedy", "fact"), [(None, "refused without a remedy: .* is stochastic"), (lambda model: model, "and refused")]
)
def test_the_survey_notices_a_refusal_without_a_remedy_that_helps(remedy, fact):
    noisy = Classifier(lambda self, embedding: self.fc(embedding) + torch.randn(len(embedding), 1))
    with pytest.raises(SurveyError, match=fact):
        survey(Architecture("", "noise", lambda: noisy, vectors, remedy=remedy))
