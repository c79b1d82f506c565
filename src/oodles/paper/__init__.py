"""What only concerns the DICE paper: its published numbers, tables and figures, the sweep over p, its theory."""

from oodles.paper import analysis

__all__ = ["analysis"]
