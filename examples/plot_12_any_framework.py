"""
A model from any framework: guard an ONNX file
==============================================

Google's Magika tells 214 types of files apart by their bytes. Its network was made in JAX and is shipped as an ONNX
file. Like every classifier it answers for formats it was never trained on, too. Here it gets a guard, from the files
of this machine, and its outputs stay the same bit for bit. It needs ``pip install magika``.
"""

import itertools
import json
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import magika
import matplotlib.pyplot as plt
import torch
from safetensors.torch import save_file

import oodles as ood
from oodles.data.transforms import FileBytes

package = Path(magika.__file__).parent
model = package / "models" / "standard_v3_3" / "model.onnx"
config = json.loads(model.with_name("config.min.json").read_text())
kinds = json.loads((package / "config" / "content_types_kb.min.json").read_text())

# %%
# Files that the network knows
# ----------------------------
# We take up to 60 files of every extension that belongs to one of its types. The network sees the first and the last
# 1,024 bytes of a file, without white space at the ends, and 256 where there are none.

classes = config["target_labels_space"]
extensions = {extension for name in classes for extension in kinds[name]["extensions"]}
files = defaultdict(list)
for path in itertools.chain(*(Path(root).rglob("*.*") for root in ("/usr", sys.prefix))):
    found = files[path.suffix[1:]]
    if path.suffix[1:] in extensions and len(found) < 60 and path.is_file() and path.stat().st_size >= 8:
        found.append(path)
known = [path for suffix in sorted(files) for path in files[suffix]]

reads = FileBytes(first=config["beg_size"], last=config["end_size"], padding=config["padding_token"])


def batches(paths):
    """The bytes of files, 64 files at a time."""
    rows = []
    for path in paths:
        with path.open("rb") as file:
            rows.append(torch.from_numpy(reads(file)))
    return list(torch.stack(rows).split(64))


train, calibration, test = batches(known[0::4] + known[1::4]), batches(known[2::4]), batches(known[3::4])

# %%
# The guard
# ---------
# The head, a dense layer before a softmax of five nodes, is found on the graph and proved.

guard = ood.Guard.fit(model, train, calibration=calibration, classes=classes, preprocessing=reads)
head = guard.model.found
print(f"{len(known)} files of {sum(map(bool, files.values()))} extensions")
print(f"the head: {head.kind}, width {head.head.width}")

# %%
# Formats that it does not know
# -----------------------------

folder = Path(tempfile.mkdtemp())
for number in range(40):
    tensors = {f"layer{each}.weight": torch.randn(8 + number, 16) for each in range(1 + number % 7)}
    save_file(tensors, folder / f"{number}.safetensors")
unknown = {
    "time zones": Path("/usr/share/zoneinfo").rglob("*"),
    "terminfo": itertools.chain(Path("/usr/share/terminfo").rglob("*"), Path("/lib/terminfo").rglob("*")),
    "gettext catalogues": Path("/usr").rglob("*.mo"),
    "compiled locales": Path("/usr/lib/locale").rglob("LC_*"),
    "safetensors": folder.glob("*"),
}
binary = {"time zones": b"TZif", "terminfo": (b"\x1a\x01", b"\x1e\x02"), "gettext catalogues": b"\xde\x12\x04\x95"}
scores = {"known types": torch.cat([guard(batch).score for batch in test])}
print(f"{'unknown format':20} files  accepted  Magika says")
for name, paths in unknown.items():
    chosen = [path for path in paths if path.is_file() and path.stat().st_size >= 8]
    chosen = [path for path in chosen if path.read_bytes()[:4].startswith(binary.get(name, b""))][:300]
    if not chosen:
        continue
    verdicts = [guard(batch) for batch in batches(chosen)]
    scores[name] = torch.cat([verdict.score for verdict in verdicts])
    answer = classes[int(torch.cat([verdict.label for verdict in verdicts]).mode().values)]
    fpr = ood.metrics.evaluate(scores["known types"], scores[name]).fpr95
    print(f"{name:20} {len(chosen):5}  {fpr:7.1%}  {answer}")
accepted = float(guard.threshold.is_id(scores["known types"]).float().mean())
print(f"known types: {accepted:.1%} of {len(scores['known types'])} files accepted")

# %%
# One file for production
# -----------------------
# The detector is appended to the network's own graph. What comes out needs NumPy and onnxruntime alone, and takes
# paths: ``oodles score guard.zip ~/Downloads`` and ``oodles serve guard.zip`` do the same.

exported = guard.export(folder / "guard.zip")
verdict = exported("/usr/share/zoneinfo/UTC")
print(f"{exported}\nUTC: {classes[verdict.label[0]]}? {'accepted' if verdict.is_id[0] else 'rejected'}")
same = bool((exported(test[0].numpy()).logits == guard.model(test[0]).numpy()).all())
print(f"the network's own output is the same, bit for bit: {same}")

figure, axis = plt.subplots(figsize=(7, 3))
axis.boxplot([each.numpy() for each in scores.values()], orientation="horizontal", tick_labels=[*scores], sym=".")
axis.axvline(guard.threshold.value, color="black", linestyle=":")
axis.set(xlabel="score; the dotted line is the threshold", xscale="symlog")
figure.tight_layout()
