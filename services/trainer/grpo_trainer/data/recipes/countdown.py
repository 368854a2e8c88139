"""The Countdown game: reach a target with the given numbers and the four basic operations.

Columns: `nums`, a list of numbers, and `target`; the reward `countdown` needs both. The question is that of the
Countdown experiment of ms-swift after mini-deepseek-r1. Its dataset is `Jiayi-Pan/Countdown-Tasks-3to4` on the Hugging
Face hub, and `zouxuhong/Countdown-Tasks-3to4` on ModelScope.
"""

from .recipe import Recipe

QUESTION = """\
Using the numbers {nums}, create an equation that equals {target}.
You can use basic arithmetic operations (+, -, *, /) and each number can only be used once.
Show your work in <think> </think> tags. And return the final equation and answer in <answer> </answer> tags,
for example <answer> (1 + 2) / 3 * 4 = 4 </answer>."""

RECIPE = Recipe(question=QUESTION)
