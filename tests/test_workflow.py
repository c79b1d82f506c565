"""The GitHub workflow and the hooks before a commit do what ``.ci/run`` and ``make lint`` do, with few rights."""

import re

import yaml
from support.installs import ROOT

# BaseLoader: YAML 1.1 would read the key `on` as true
WORKFLOW = yaml.load((ROOT / ".github" / "workflows" / "ci.yml").read_text(), Loader=yaml.BaseLoader)  # noqa: S506


def commands(job):
    return [step["run"] for step in job["steps"] if "run" in step]


def test_one_job_runs_all_of_ci_on_the_oldest_python():
    job = WORKFLOW["jobs"]["everything"]
    assert commands(job) == ["bash .ci/run"]
    (version,) = (step["with"]["python-version"] for step in job["steps"] if "setup-python" in step.get("uses", ""))
    assert f'requires-python = ">={version}"' in (ROOT / "pyproject.toml").read_text()


def test_every_make_target_that_is_called_exists():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    script = (ROOT / ".ci" / "run").read_text()
    called = re.findall(r"^(?:\w+=\S+ )?make ([\w-]+)", script, re.MULTILINE)
    assert {"demo", "test"} <= set(called), "the commands of the README"
    called += [command.removeprefix("make ") for command in commands(WORKFLOW["jobs"]["tests"])]
    assert set(called) <= targets


def test_rights_and_actions_are_few():
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in WORKFLOW["on"]
    used = [step["uses"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "uses" in step]
    assert all(re.fullmatch(r"[\w/-]+@v\d+", action) for action in used)
    assert {action.partition("@")[0] for action in used} == {"actions/checkout", "actions/setup-python"}
    assert not any("permissions" in job for job in WORKFLOW["jobs"].values())


def test_hooks_before_a_commit_are_those_of_make_lint():
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local"
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    linted = [line.strip().removeprefix("$(BIN)/").split() for line in recipe.splitlines()]
    hooks = [hook["entry"].removeprefix(".venv/bin/").split() for hook in local["hooks"]]
    options = {"--check", ".", "--force-exclude"}  # of a check of everything, and of a fix of some files
    assert [[w for w in line if w not in options] for line in hooks] == [
        [w for w in line if w not in options] for line in linted
    ]
