"""Training recipes: the DICE paper's, Generalized ODIN's, and a short one for small machines."""

from dataclasses import dataclass

from oodles.errors import ArgumentError

MAX_EPOCHS = 100_000
MAX_RATE = 1e38  # of a float32
WARMUP = 0.2  # the fraction of a one-cycle run during which the learning rate rises


@dataclass(frozen=True)
class Recipe:
    """SGD as in the paper. The learning rate is divided by 10 after each of the fractions ``drops`` of the run.

    Without ``drops`` it follows one cycle: up to ``learning_rate`` in the first fifth of the run, then down to 0.
    """

    epochs: int = 100
    batch_size: int = 64
    learning_rate: float = 0.1
    drops: tuple[float, ...] = (0.5, 0.75, 0.9)
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 1e-4

    def __post_init__(self) -> None:
        if not 1 <= self.epochs <= MAX_EPOCHS or self.batch_size < 2:
            raise ArgumentError(
                f"epochs={self.epochs} must lie between 1 and {MAX_EPOCHS:,}, batch_size={self.batch_size} at least 2"
            )
        if not 0 < self.learning_rate <= MAX_RATE:
            raise ArgumentError(f"learning_rate={self.learning_rate} must be positive, at most {MAX_RATE:g}")
        if not 0 <= self.momentum < 1 or (self.nesterov and self.momentum == 0):
            raise ArgumentError(f"momentum={self.momentum} must lie in [0, 1), and above 0 for nesterov")
        if not self.weight_decay >= 0:
            raise ArgumentError(f"weight_decay={self.weight_decay} must be 0 or more")
        if not all(0 < drop < 1 for drop in self.drops):
            raise ArgumentError(f"drops={self.drops} must be fractions of the run, between 0 and 1")

    def learning_rate_at(self, progress: float) -> float:
        """The learning rate after the fraction ``progress`` of the run.

        >>> [round(Recipe().learning_rate_at(epoch / 100), 4) for epoch in (0, 49, 50, 75, 90)]
        [0.1, 0.1, 0.01, 0.001, 0.0001]
        """
        if self.drops:
            return float(self.learning_rate * 0.1 ** sum(progress >= drop for drop in self.drops))
        return self.learning_rate * min(progress / WARMUP, (1 - progress) / (1 - WARMUP))


RECIPES = {
    "paper": Recipe(),
    "godin": Recipe(epochs=200, drops=(0.5, 0.75)),
    "one-cycle": Recipe(epochs=24, batch_size=128, learning_rate=0.2, drops=(), nesterov=True, weight_decay=5e-4),
}
