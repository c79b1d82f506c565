"""Monitoring: whether inputs that a guard scores are still like its calibration set, without labels or times.

Bounds, tests, alarms and their state are here, with NumPy alone. What scores inputs, serves them or prints is not.
"""

from oodles.monitor.alerts import Alert, AlertRule, Webhook
from oodles.monitor.monitor import Monitor

__all__ = ["Alert", "AlertRule", "Monitor", "Webhook"]
