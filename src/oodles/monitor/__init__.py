"""Monitoring: whether inputs that a guard scores are still like its calibration set, without labels or times.

Bounds, tests, alarms and their state are here, with NumPy alone. What scores inputs, serves them or prints is not.
"""

from oodles.monitor.monitor import Monitor
from oodles.monitor.prometheus import write_rules
from oodles.monitor.rules import Alert, AlertRule
from oodles.monitor.webhook import Webhook

__all__ = ["Alert", "AlertRule", "Monitor", "Webhook", "write_rules"]
