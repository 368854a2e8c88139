"""The recipes, one small file each. A new one is a new file, a line here and its name in `config/data.py`."""

from . import countdown, numina_math
from .recipe import Message, Recipe, with_system

RECIPES = {"countdown": countdown.RECIPE, "numina_math": numina_math.RECIPE}

__all__ = ["RECIPES", "Message", "Recipe", "with_system"]
