"""The Dockerfile and the Kubernetes example: their steps are run, and their probes asked, without Docker."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.disks import obey_permissions
from support.serving import AUTHORISED, JPEG, TOKEN, photo, running, serving

ROOT = Path(__file__).parents[2]


def stages() -> list[list[tuple[str, str]]]:
    """What each stage of the Dockerfile says, one after another: the instruction and the rest."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found: list[list[tuple[str, str]]] = []
    for line in filter(str.strip, text.splitlines()):
        name, _, rest = line.partition(" ")
        if name == "FROM":
            found.append([])
        found[-1].append((name, rest.strip()))
    return found


def test_the_image_is_built_for_an_ordinary_user():
    last = stages()[-1]
    named = dict(last)
    assert named["USER"] == "65532:65532"
    assert not [rest for name, rest in last if name == "RUN"], "the last stage only takes over what was built"
    assert json.loads(named["ENTRYPOINT"])[0] == "/bin/sh"
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [part for name, rest in stages()[0] if name == "COPY" for part in rest.split()[:-1]]
    assert sorted(copied) == sorted(allowed)
    assert all((ROOT / name).exists() for name in copied)


@pytest.mark.install
def test_the_steps_of_the_dockerfile(guards, tmp_path):
    """The build stage in a copy of what it copies, then the entry point on a file system that cannot be written."""
    source, venv, mounted = tmp_path / "source", tmp_path / "oodles", tmp_path / "guards"
    source.mkdir()
    mounted.mkdir()
    for name in ("images", "vectors"):
        shutil.copy(guards / f"{name}.zip", mounted)
    places = {"/oodles": str(venv), "/guards": str(mounted)}

    def here(text):
        return re.sub(r"(?<!\w)/(oodles|guards)\b(?=[/ '\"]|$)", lambda found: places[found[0]], text)

    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    for name, rest in stages()[0]:
        if name == "COPY":
            *given, target = rest.split()
            for each in given:
                path = source / target if len(given) == 1 and target != "./" else source / each
                if (ROOT / each).is_dir():
                    shutil.copytree(ROOT / each, path, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(ROOT / each, path)
        elif name == "RUN":
            words = [sys.executable if word == "python" else word for word in shlex.split(here(rest))]
            done = subprocess.run(words, cwd=source, env=clean, capture_output=True, text=True)
            if done.returncode and "No matching distribution" in done.stderr:
                pytest.skip("pip cannot install anything here")
            assert done.returncode == 0, (words, done.stderr)
    listed = [sys.executable, "-m", "pip", "--python", venv / "bin" / "python", "list"]
    packages = subprocess.run(listed, capture_output=True, text=True).stdout
    assert "fastapi" in packages
    assert not re.search(r"^(torch|hatchling|pip) ", packages, re.MULTILINE)
    shutil.rmtree(source)

    named = dict(stages()[-1])
    entry = [here(part) for part in json.loads(named["ENTRYPOINT"])]
    variables = {"PATH": "/usr/bin:/bin", "OODLES_TOKEN": TOKEN, "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/nonexistent"}
    variables["OODLES_ADMIN_TOKEN"] = TOKEN
    before = sorted(venv.rglob("*"))
    for folder in (mounted, tmp_path):
        folder.chmod(0o555)
    try:
        with running([*on_read_only(), *entry, "--port", 0], variables, obey_permissions, mounted) as server:
            assert server.address.startswith("http://0.0.0.0:")
            health = [here(part) for part in json.loads(named["HEALTHCHECK"].partition("CMD ")[2])]
            health[-1] = health[-1].replace(":8000", f":{server.port}")
            assert subprocess.run(health, env=variables).returncode == 0
            assert server.score(photo(), "?guard=images", {**AUTHORISED, **JPEG}).status == 200
            served = server.get("/guards", **AUTHORISED).json["guards"]
            assert [each["name"] for each in served] == ["images", "vectors"]
            assert server.ask("PUT", "/guards/images/threshold", b'{"value": 1}', AUTHORISED).status == 503
            assert server.stop(signal.SIGTERM) == 0
            assert not server.other_lines
    finally:
        for folder in (mounted, tmp_path):
            folder.chmod(0o755)
    assert sorted(venv.rglob("*")) == before, "nothing was written, caches included"


def on_read_only():
    """What to put in front of a command as for docker run --read-only; nothing where that is not allowed."""
    script = 'mount --make-rprivate / && mount -o remount,ro,bind / && exec "$@"'
    inside = ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh"]
    tried = subprocess.run([*inside, "sh", "-c", "! touch /tmp/oodles-can-write"], capture_output=True)
    return inside if tried.returncode == 0 else []


def test_what_kubernetes_asks_is_answered(guards, tmp_path):
    """The example parses, asks for what it should, and its arguments and probes work with the real server."""
    deployment, service = yaml.safe_load_all((ROOT / "deploy" / "kubernetes.yaml").read_text())
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {"cpu", "memory"} == container["resources"]["limits"].keys()
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
    (tmp_path / "token").mkdir()
    (tmp_path / "token" / "..data").write_text(TOKEN)
    (tmp_path / "token" / "token.txt").symlink_to("..data")  # as secrets are mounted
    arguments = [re.sub(r"^/(?=token|state)", f"{tmp_path}/", argument) for argument in container["args"]]
    drain, timeout = (float(arguments[arguments.index(name) + 1]) for name in ("--drain", "--timeout"))
    assert pod["terminationGracePeriodSeconds"] >= drain + timeout + 5
    with serving(guards / "images.zip", *arguments) as server:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = container[probe]["httpGet"]
            assert asked["port"] == container["ports"][0]["name"] == "http"
            assert server.get(asked["path"]).status == 200
        path = deployment["spec"]["template"]["metadata"]["annotations"]["prometheus.io/path"]
        assert server.get(path).status == 200
        assert server.score(photo()).status == 401
        assert server.score(photo(), "", {**AUTHORISED, **JPEG}).status == 200


def test_rules_for_prometheus_are_about_exported_metrics(server):
    (group,) = yaml.safe_load((ROOT / "deploy" / "prometheus-rules.yaml").read_text())["groups"]
    assert server.score(photo(), "?guard=images").status == 200  # the monitor's metrics have values
    exported = server.get("/metrics").body.decode()
    for rule in group["rules"]:
        assert "record" in rule or {"alert", "expr", "labels", "annotations"} <= {*rule}
        assert [rule["expr"].count(each) for each in "([{"] == [rule["expr"].count(each) for each in ")]}"]
        for name in re.findall(r"oodles_\w+", rule["expr"]):
            assert f"\n{name}{{" in exported, name
