"""Mathematics problems as in the R1-Zero recipe (dataset `AI-MO/NuminaMath-TIR`).

Columns: `problem` is the question; `solution` stays for the reward `accuracy`. The system prompt is DeepSeek-R1's.
"""

from .recipe import Recipe

SYSTEM = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The assistant "
    "first thinks about the reasoning process in the mind and then provides the user with the answer. The reasoning "
    "process and answer are enclosed within <think> </think> and <answer> </answer> tags, respectively, i.e., "
    "<think> reasoning process here </think><answer> answer here </answer>"
)

RECIPE = Recipe(question="{problem}", system=SYSTEM)
