"""The recipes, one small file each. A new one is a new file and a line here; a user's own is `FILE.py:NAME`: own.py."""

from . import countdown, numina_math
from .own import converted
from .recipe import Message, Recipe, with_system

RECIPES = {"countdown": countdown.RECIPE, "numina_math": numina_math.RECIPE}

__all__ = ["RECIPES", "Message", "Recipe", "converted", "with_system"]
