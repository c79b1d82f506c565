"""``Wanted``: what is kept of a network's pass besides embedding and logits, and whether a store already has it."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from oodles.steps import Step, distinct_steps
from oodles.store import is_store, read_manifest


class Wanted(NamedTuple):
    """The inner layers whose activations are kept, and the input steps whose results are."""

    layers: Sequence[str] = ()
    steps: Sequence[Step] = ()

    @classmethod
    def union(cls, parts: Iterable["Wanted"]) -> "Wanted":
        """Everything that any of ``parts`` names, each once."""
        every = list(parts)
        layers = dict.fromkeys(name for part in every for name in part.layers)
        return cls(tuple(layers), distinct_steps(step for part in every for step in part.steps))

    def record(self) -> dict[str, Any]:
        """As a store describes it: layers by name, steps by name and identity."""
        steps = [[step.name, step.identity] for step in self.steps]
        return {"layers": list(self.layers), **({"steps": steps} if steps else {})}

    def is_in(self, store: Path) -> bool:
        """Whether ``store`` is complete and has all of it; it may have more."""
        if not is_store(store):
            return False
        manifest = read_manifest(store)
        return manifest["complete"] and all(
            each in _recorded(manifest["about"])[kind] for kind, parts in self.record().items() for each in parts
        )

    def record_in(self, store: Path) -> dict[str, Any]:
        """What an extraction to ``store`` is described by: a complete store that has more is described as it is."""
        return _recorded(read_manifest(store)["about"]) if self.is_in(store) else self.record()

    def belongs_in(self, store: Path) -> bool:
        """Whether ``store`` is new, or was begun with exactly this."""
        return not is_store(store) or _recorded(read_manifest(store)["about"]) == _recorded(self.record())


def _recorded(about: dict[str, Any]) -> dict[str, Any]:
    return {kind: about.get(kind) or [] for kind in ("layers", "steps")}
