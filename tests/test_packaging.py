"""The package as users get it: what wheel and sdist contain, and that the wheel works where this repository is not."""

import csv
import json
import os
import re
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from fnmatch import fnmatch
from importlib.metadata import distribution, distributions
from itertools import chain
from pathlib import Path

import pytest
import yaml
from support.images import write_image
from support.installs import ROOT, build, environment_with, run, wheel_of_sdist

import oodles
from studies import third_party

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LICENCES = {"LICENSE", "THIRD_PARTY.md"}
# whatever is neither code nor one of these does not belong into the package
ASSETS = (
    "py.typed",
    "data/sources.json",
    "demo_pack/card.json",
    "demo_pack/*/manifest.json",
    "demo_pack/*/*.safetensors",
    "models/cifar10-small/card.json",
    "models/cifar10-small/weights.safetensors",
    "models/cifar10-small/guard/guard.json",
    "models/cifar10-small/guard/guard-*.safetensors",
    "paper/published.json",
    "report/templates/report.css",
    "report/templates/report.html",
    "serve/page/*.css",
    "serve/page/*.html",
    "serve/page/*.js",
)
SIZE = 12_500_000  # bytes; nearly all are the demo's features and the small network with its guard
OTHERS = os.environ.get("OODLES_PYTHONS", "").split()


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, ...]:
    return build(tmp_path_factory.mktemp("built"), "sdist", "wheel")


def test_the_wheel_holds_the_package_and_nothing_else(built):
    with zipfile.ZipFile(built[1]) as wheel:
        assert wheel.testzip() is None
        members = [name.partition("/") for name in wheel.namelist()]
    package = {inner for top, _, inner in members if top == "oodles"}
    record = {inner for top, _, inner in members if top != "oodles"}
    source = ROOT / "src" / "oodles"
    files = [path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()]
    assert package == {name for name in files if "__pycache__" not in name}
    code = {name for name in package if re.fullmatch(r"(\w+/)*\w+\.pyi?", name)}
    assert {name for name in package - code if not any(fnmatch(name, pattern) for pattern in ASSETS)} == set()
    assert [pattern for pattern in ASSETS if not any(fnmatch(name, pattern) for name in package)] == []
    assert record == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", *(f"licenses/{name}" for name in LICENCES)}
    assert built[1].stat().st_size < SIZE


def test_the_sdist_builds_the_same_wheel(built, tmp_path):
    sdist, wheel = built
    assert wheel_of_sdist(sdist, tmp_path).read_bytes() == wheel.read_bytes()


def test_the_sdist_holds_sources_and_pages_only(built):
    with tarfile.open(built[0]) as sdist:
        names = {member.name.partition("/")[2].partition("/")[0] for member in sdist.getmembers()}
    pages = {"README.md", "CHANGELOG.md", "CITATION.cff", "docs", *LICENCES}
    assert names == {"src", "pyproject.toml", "PKG-INFO", ".gitignore", *pages}


def test_metadata_is_complete(built):
    with zipfile.ZipFile(built[1]) as wheel:
        text = wheel.read(f"oodles-{oodles.__version__}.dist-info/METADATA").decode()
    metadata = message_from_string(text)
    assert metadata["Version"] == oodles.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", oodles.__version__)
    assert set(metadata.get_all("License-File")) == LICENCES
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL"))
    assert {"Repository", "Documentation", "Changelog", "Issues"} <= set(urls)
    assert all(url.startswith(urls["Repository"]) for url in urls.values())


def test_every_version_that_is_asked_for_is_pinned():
    pins = {
        re.sub(r"[-_.]+", "-", line.partition("==")[0].lower())
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    asked = chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    names = {re.match(r"[\w-]+", requirement)[0].lower() for requirement in asked} - {"oodles"}
    assert names <= pins


def test_notices_name_every_package_that_users_install():
    page = (ROOT / "THIRD_PARTY.md").read_text()
    prose, _, _ = (ROOT / "docs" / "templates" / "third-party.md").read_text().partition("{packages}")
    assert page.startswith(prose), "run make study NAME=third_party"
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.removeprefix(prose).splitlines()]
    listed = {name: (set(extras.split(", ")), licence) for name, extras, licence in rows}
    for extra in third_party.EXTRAS:
        for need in map(third_party.plain, third_party.direct(extra)):
            assert extra in listed[need][0] or listed[need][0] == {""}, f"{need}: run make study NAME=third_party"
    installed = {third_party.plain(each.name) for each in distributions()} & listed.keys()
    assert len(installed) > 30
    assert {name: third_party.licence(distribution(name)) for name in installed} == {n: listed[n][1] for n in installed}


def test_the_citation_and_the_changelog_are_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == oodles.__version__
    assert (citation["license"], citation["type"]) == (PROJECT["license"], "software")
    assert citation["repository-code"] == PROJECT["urls"]["Repository"]
    (paper,) = citation["references"]
    assert ([author["family-names"] for author in paper["authors"]], paper["year"]) == (["Sun", "Li"], 2022)
    first = next(line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## "))
    assert first.split()[1] == oodles.__version__


def test_reports_of_vulnerabilities_go_to_the_repository():
    page = (ROOT / "SECURITY.md").read_text()
    assert f"{PROJECT['urls']['Repository']}/security/advisories/new" in page
    assert oodles.__version__.rpartition(".")[0] in page


@pytest.mark.install
def test_the_wheel_runs_the_demo_and_scores_a_picture_in_an_empty_environment(built, tmp_path):
    python = environment_with(f"{built[1]}[torch]", tmp_path / "venv")
    command = python.with_name("oodles")
    where = run(python, "-c", "import oodles; print(oodles.__file__)", folder=tmp_path).strip()
    assert Path(where).is_relative_to(tmp_path)
    assert "dice(0.9)" in run(command, "demo", folder=tmp_path)
    assert json.loads((tmp_path / "oodles-demo" / "rows.json").read_text())
    write_image(tmp_path / "picture.png", size=(40, 30))
    (scored,) = score(command, "picture.png", folder=tmp_path)
    assert (scored["path"], scored["error"]) == ("picture.png", "")
    assert scored["is_id"] in ("true", "false")


@pytest.mark.install
@pytest.mark.parametrize("python", OTHERS or [pytest.param("", marks=pytest.mark.skip("no other Python found"))])
def test_other_pythons_score_with_an_exported_guard(built, python, tmp_path):
    check_exported_guard(environment_with(f"{built[1]}[serve]", tmp_path / "venv", python), tmp_path)


@pytest.mark.install
def test_the_oldest_versions_that_are_allowed_score_with_an_exported_guard(built, tmp_path):
    oldest = tmp_path / "oldest.txt"
    allowed = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["serve"]]
    oldest.write_text("\n".join(requirement.replace(">=", "==") for requirement in allowed))
    python = environment_with(f"{built[1]}[serve]", tmp_path / "venv", constraints=oldest)
    version = "from importlib.metadata import version; print(version('typer'))"
    assert run(python, "-c", version).strip() == "0.16.0"
    check_exported_guard(python, tmp_path)


def check_exported_guard(python: Path, folder: Path) -> None:
    """The command of another environment gives the answers of ours, without PyTorch."""
    ours, theirs = Path(sys.executable).with_name("oodles"), python.with_name("oodles")
    run(ours, "export", "--out", "guard.zip", folder=folder)
    for number in range(3):
        write_image(folder / "photos" / f"{number}.png", size=(40, 30), seed=number)
    assert "Start with oodles demo" in run(theirs, "--help", folder=folder)
    assert "oodles serve" in run(theirs, "serve", "--help", folder=folder)
    expected, found = (score(command, "guard.zip", "photos", folder=folder) for command in (ours, theirs))
    assert len(found) == 3
    assert [row["is_id"] for row in found] == [row["is_id"] for row in expected]
    scores = [[float(row["score"]) for row in rows] for rows in (found, expected)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)


def score(command: Path, *paths: object, folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(run(command, "score", *paths, "--csv", folder=folder).splitlines()))
