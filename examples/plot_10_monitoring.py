"""
Monitoring a stream that drifts
===============================

Are a deployed model's inputs still like the calibration set, which the threshold was set on? A
:class:`oodles.monitor.Monitor` watches rejections and p-values. It needs no labels, and false alarms are rare by
construction: by default one in a million inputs.
"""

import matplotlib.pyplot as plt
import numpy as np

import oodles as ood
from oodles.bench.demo import load_pack
from oodles.models import read_card
from oodles.monitor import Monitor
from oodles.monitor.chart import draw

train, test, ood_sets, _ = load_pack()
detector = ood.default_detector().fit(train)
held_out, new = test[:700], test[700:]
threshold = ood.calibrate(detector.score(held_out), id_rate=0.95)

# %%
# A stream of 4,000 inputs: CIFAR-10 images that the threshold has not seen, drawn again and again. From the 2,000th on,
# more and more of them are house numbers from SVHN.

generator = np.random.default_rng(0)
share = np.clip((np.arange(4000) - 2000) / 2000, 0, 1) * 0.3
drifted = generator.random(4000) < share
score, label = np.empty(4000), np.empty(4000, int)
for features, rows in ((new, ~drifted), (ood_sets["svhn"], drifted)):
    drawn = generator.integers(0, len(features), rows.sum())
    score[rows] = detector.score(features).numpy()[drawn]
    label[rows] = features.logits.argmax(dim=1).numpy()[drawn]

# %%
# The monitor gets what a guard returns for each batch, and gives back the alarms that the batch raises.

monitor = Monitor(threshold, classes=read_card("cifar10-small")["classes"])
p_value, is_id = threshold.p_values(score), threshold.is_id(score)
for batch in np.split(np.arange(4000), 80):
    alerts = monitor.observe(score=score[batch], p_value=p_value[batch], label=label[batch], is_id=is_id[batch])
    for alert in alerts:
        print(f"input {alert.since}: {alert.message}; by then {drifted[: alert.since].sum()} inputs were from SVHN")
status = monitor.status()
print(f"{status['rejected']} of {status['inputs']} rejected, {status['expected']['rate']:.1%} expected")

# %%
# Rejections in windows of 200 inputs with the limits for ID inputs, and below it the evidence: an alarm is raised when
# it reaches the line.

plt.figure(draw(monitor))
plt.show()
