"""How a network is trained: the paper's recipe, Generalized ODIN's, and a short one for small machines."""

from dataclasses import dataclass

from oodles.errors import ArgumentError

WARMUP = 0.2
"""The share of a one-cycle run during which the rate climbs."""


@dataclass(frozen=True)
class Recipe:
    """SGD as the paper runs it. ``drops`` are the shares of the run after which the rate falls tenfold.

    With no ``drops`` the rate makes one cycle: up to ``rate`` during the first fifth, then down to 0.
    """

    epochs: int = 100
    batch: int = 64
    rate: float = 0.1
    drops: tuple[float, ...] = (0.5, 0.75, 0.9)
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 1e-4

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 2:
            raise ArgumentError(f"epochs={self.epochs} must be at least 1 and batch={self.batch} at least 2")
        if not self.rate > 0:
            raise ArgumentError(f"rate={self.rate} must be positive")
        if not 0 <= self.momentum < 1 or (self.nesterov and self.momentum == 0):
            raise ArgumentError(f"momentum={self.momentum} must lie in [0, 1), and above 0 for nesterov")
        if not self.weight_decay >= 0:
            raise ArgumentError(f"weight_decay={self.weight_decay} must be 0 or more")
        if not all(0 < share < 1 for share in self.drops):
            raise ArgumentError(f"drops={self.drops} are shares of the run, between 0 and 1")

    def rate_at(self, share: float) -> float:
        """The learning rate when ``share`` of the run is over.

        >>> [round(Recipe().rate_at(epoch / 100), 4) for epoch in (0, 49, 50, 75, 90)]
        [0.1, 0.1, 0.01, 0.001, 0.0001]
        """
        if self.drops:
            return float(self.rate * 0.1 ** sum(share >= drop for drop in self.drops))
        return self.rate * min(share / WARMUP, (1 - share) / (1 - WARMUP))


RECIPES = {
    "paper": Recipe(),
    "godin": Recipe(epochs=200, drops=(0.5, 0.75)),
    "one-cycle": Recipe(epochs=24, batch=128, rate=0.2, drops=(), nesterov=True, weight_decay=5e-4),
}
"""The paper's networks, Generalized ODIN's (with a DeConf head), and a short schedule for small machines."""
