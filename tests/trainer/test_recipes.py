"""Recipes: the seeds' prompts, word for word, and templates of one's own."""

from grpo_trainer.config.run_config import DataConfig
from grpo_trainer.data.recipes import RECIPES, Recipe, with_system


def test_every_recipe_of_the_run_file_is_there():
    names = DataConfig.model_json_schema()["properties"]["recipe"]["enum"]
    assert set(names) == {"none", *RECIPES}


def test_countdown_fills_the_template():
    recipe = RECIPES["countdown"]
    assert recipe.columns == ["nums", "target"]
    assert recipe.messages({"nums": [44, 19, 35], "target": 98}) == [
        {
            "role": "user",
            "content": "Using the numbers [44, 19, 35], create an equation that equals 98.\n"
            "You can use basic arithmetic operations (+, -, *, /) and each number can only be used once.\n"
            "Show your work in <think> </think> tags. And return the final equation and answer in <answer> </answer> "
            "tags,\nfor example <answer> (1 + 2) / 3 * 4 = 4 </answer>.",
        }
    ]


def test_numina_math_has_the_system_prompt_of_r1():
    system, user = RECIPES["numina_math"].messages({"problem": r"What is $\frac{1}{2}$?", "solution": "0.5"})
    assert system["role"] == "system"
    assert system["content"].startswith("A conversation between User and Assistant.")
    assert system["content"].endswith("<think> reasoning process here </think><answer> answer here </answer>")
    assert user == {"role": "user", "content": r"What is $\frac{1}{2}$?"}


def test_braces_that_are_no_columns_are_text():
    recipe = Recipe(question=r"{problem} Write \boxed{} and \frac{1}{2}, not {{problem}}.")
    assert recipe.columns == ["problem"]
    [message] = recipe.messages({"problem": "{x}"})
    assert message["content"] == r"{x} Write \boxed{} and \frac{1}{2}, not {problem}."


def test_a_system_prompt_replaces_the_one_there():
    user = {"role": "user", "content": "hi"}
    old = {"role": "system", "content": "old"}
    assert with_system("new", [old, user]) == [{"role": "system", "content": "new"}, user]
    assert with_system(None, [old, user]) == [old, user]
    assert with_system("", [user]) == [user]
