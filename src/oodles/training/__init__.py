"""Training networks: recipes, and a trainer that resumes exactly."""

from oodles.training.recipes import RECIPES, Recipe
from oodles.training.trainer import train

__all__ = ["RECIPES", "Recipe", "train"]
