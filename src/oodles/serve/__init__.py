"""The HTTP service: exported guards behind a port, with a page to look at. No mathematics, and no torch.

What an input is worth is decided by :class:`oodles.deploy.exported.ExportedGuard`, whether the stream has changed by
:class:`oodles.monitor.Monitor`. Here are limits, batches, routes, logs and signals.
"""
