from .recipes import RECIPES as RECIPES
from .recipes import Recipe as Recipe
from .trainer import train as train
