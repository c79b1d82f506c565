"""Every example runs as a script, prints what it promises, and draws something."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
# run as a script, then save what pyplot shows
DRIVER = """
import runpy, sys
runpy.run_path(sys.argv[1], run_name="__main__")
import matplotlib.pyplot as plt
for number in plt.get_fignums():
    figure = plt.figure(number)
    assert any(axis.has_data() for axis in figure.axes), "an empty figure"
    figure.savefig(f"{sys.argv[2]}/{number}.png", dpi=50)
"""
PRINTED = {
    "01_quickstart": r"dice\(0\.9\) +33\.\d/92\.\d(?s:.*)default +1\d\.\d/96\.\d",
    "02_your_own_network": r"of 0 to 7: 9\d\.\d%\naccepted: 9\d\.\d% of them, [1-5]\d\.\d% of 8s",
    "03_dice_by_hand": r"342 of 3420 weights are kept, the same: True",
    "04_text": r"coast again = weather\? accepted(?s:.*)until monday = \w+\? rejected",
    "05_composing": r"react\(97\)\+scale\(65\)\+dice\(0\.1\)\+energy\nthe same scores: True",
    "06_choosing_p": r"mixed: dice\(0\.\d+\)\+energy: within .* points of the best AUROC",
    "07_threshold": r"accepted: 9\d\.\d% of new ID images, [1-4]\d\.\d% of 8s and 9s, 0 of NaNs",
    "08_explaining": r"Rejected as out-of-distribution: (?s:.*)nearest training rows, by similarity",
    "09_without_torch": r"ExportedGuard\(knn\(k=5\).*largest difference of scores: \d(\.\d)?e-0[5-9]",
    "10_monitoring": r"input 2[3-9]\d\d: more inputs (?s:.*) of 4000 rejected, 5\.0% expected",
    "11_your_own_detector": r"relative_norm +47\.\d/85\.\d",
    "12_any_framework": r"time zones +\d+ +[0-5]\.\d%(?s:.*)UTC: pcap\? rejected\n.*bit for bit: True",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PRINTED)
def test_an_example_runs_prints_and_draws(name, tmp_path):
    environment = {**os.environ, "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", DRIVER, str(EXAMPLES / f"plot_{name}.py"), str(tmp_path)]
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert re.search(PRINTED[name], ended.stdout), ended.stdout
    pictures = list(tmp_path.glob("*.png"))
    assert pictures
    assert all(picture.stat().st_size > 2000 for picture in pictures)


def test_every_example_is_tried_and_short():
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert [script.stem.removeprefix("plot_") for script in scripts] == sorted(PRINTED)
    for script in scripts:
        text = script.read_text()
        assert len(text.splitlines()) < (60 if script.stem != "plot_12_any_framework" else 120), script.name
        assert re.match(r'"""\n(\S.*)\n(=+)\n\n', text), f"{script.name} begins with a title"
