"""Recipes: the seeds' prompts, word for word, templates of one's own, and a user's own file."""

import json
import re
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError
from tests.tiny_model import make_tokenizer
from tests.trainer.importing import as_in_a_new_process

from grpo_trainer.config.cold_start import ColdStartData
from grpo_trainer.config.run_config import DataConfig
from grpo_trainer.data.demonstrations import load_examples
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.data.recipes import RECIPES, with_system
from grpo_trainer.data.rows import load_prompt_rows
from grpo_trainer.errors import UsageError

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "trainer.md"


def test_an_unknown_recipe_lists_those_that_are_known(tmp_path: Path):
    with pytest.raises(UsageError, match=r"data.recipe countdwon is unknown; did you mean countdown\?") as refused:
        load_prompt_rows(DataConfig(dataset=dataset(tmp_path, {}), recipe="countdwon"), make_tokenizer())
    known = ", ".join(sorted({"none", *RECIPES}))
    assert refused.value.hint == f"known are {known}; your own is FILE.py:NAME"
    assert all(name in DataConfig.model_fields["recipe"].description for name in RECIPES)


def test_countdown_fills_the_template():
    recipe = RECIPES["countdown"]
    assert recipe.template.names(required=True) == ["nums", "target"]
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


def test_a_system_prompt_replaces_the_one_there():
    user = {"role": "user", "content": "hi"}
    old = {"role": "system", "content": "old"}
    assert with_system("new", [old, user]) == [{"role": "system", "content": "new"}, user]
    assert with_system(None, [old, user]) == [old, user]
    assert with_system("", [user]) == [user]


def dataset(folder: Path, *rows: dict[str, object]) -> str:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "rows.jsonl")


def rows_of(folder: Path, code: str, *rows: dict[str, object], **settings: object) -> list[PromptRow]:
    """The rows as `make` in a file of `code` makes them; a run in `folder` keeps them."""
    (folder / "own.py").write_text(code)
    as_in_a_new_process("own")
    config = DataConfig(dataset=dataset(folder, *rows), recipe=f"{folder}/own.py:make", **settings)
    return list(load_prompt_rows(config, make_tokenizer(), folder=folder / "run"))


QUESTION = {"response": 98, "nums": [44, 19, 35]}


def test_the_recipe_of_the_documentation_works_as_it_stands(tmp_path: Path):
    (code,) = re.findall(r"```python\n(def countdown.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    (section,) = re.findall(r"```yaml\n(data: {recipe: prompts.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    given = yaml.safe_load(section)["data"]["recipe_params"]
    [row] = rows_of(tmp_path, code + "\nmake = countdown\n", QUESTION, system="Think.", recipe_params=given)
    assert row.columns["nums"] == [19, 35, 44]
    assert row.columns["target"] == 98
    assert [message["role"] for message in row.prompt] == ["system", "user"]
    assert row.prompt[1]["content"] == "Reach 98 with [19, 35, 44]."


def test_a_row_keeps_its_columns_beside_those_that_the_recipe_adds_or_replaces(tmp_path: Path):
    code = """
import numpy

def make(row):
    return {"prompt": str(row.pop("response")), "nums": [float(n) for n in row["nums"]], "best": numpy.int64(3)}
"""
    [row] = rows_of(tmp_path, code, QUESTION)
    assert row.prompt == "98", "text stays text, as in a column of the dataset"
    assert row.columns == {"response": 98, "nums": [44.0, 19.0, 35.0], "prompt": "98", "best": 3}


RAISES = """
import json

def make(row):
    if row["n"] == 2:
        return json.loads("{")
    return {"prompt": "x"}
"""


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (RAISES, r"rows.jsonl, row 2: data.recipe .*own.py:make raised JSONDecodeError in line 6: .*\(the row has n\)"),
        ("def make(row):\n    return row['m']", r"row 1: .* raised KeyError in line 2: 'm' \(the row has n\)"),
        ("def make(row):\n    pass", "row 1: data.recipe .*own.py:make returned a value of type NoneType"),
        ("def make(row):\n    return {'query': 'x'}", "row 1: .*own.py:make returned no prompt, only query"),
        ("def make(row):\n    return {'prompt': 7}", "row 1: the prompt of data.recipe .*own.py:make is neither text"),
        (
            "def make(row):\n    return {'prompt': [{'role': 'user', 'content': 'x'}, {}][: row['n']]}",
            "row 2: the prompt of data.recipe .*own.py:make holds a message without",
        ),
        ("def male(row):\n    pass", "data.recipe: .*own.py has no function make"),
        ("def make():\n    pass", r"data.recipe: .*own.py:make cannot be called as make\(row\): too many positional"),
        ("def make(row, top):\n    pass", r"data.recipe_params: .*own.py:make needs a value for top \(its param"),
    ],
)  # fmt: skip
def test_a_recipe_that_fails_names_the_row_and_its_file(tmp_path: Path, code: str, message: str):
    with pytest.raises(UsageError, match=message):
        rows_of(tmp_path, code, {"n": 1}, {"n": 2})
    assert not list((tmp_path / "run").glob("rows-*"))


PARAMETERS = "def make(row, *, times: int = 1):\n    return {'prompt': 'x' * times}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"recipe_params": {"time": 2}}, r"data.recipe_params: .*own.py:make has no parameter time; did you mean"),
        ({"recipe_params": {"times": 2.5}}, r"data.recipe_params.times: .*\(got 2.5\) \(.*its parameters: times = 1"),
        ({"recipe": "countdown", "recipe_params": {"times": 2}}, "_params: the recipe countdown has no parameters"),
    ],
)
def test_parameters_that_a_recipe_does_not_take_are_refused(tmp_path: Path, settings: dict[str, object], message: str):
    (tmp_path / "own.py").write_text(PARAMETERS)
    config = DataConfig(**{"dataset": dataset(tmp_path, {"n": 1}), "recipe": f"{tmp_path}/own.py:make"} | settings)
    with pytest.raises(UsageError, match=message):
        load_prompt_rows(config, make_tokenizer())


def test_other_parameters_make_the_rows_again_and_a_set_has_those_of_its_own_recipe(tmp_path: Path):
    recipe, params = f"{tmp_path}/own.py:make", {"times": 2}
    assert rows_of(tmp_path, PARAMETERS, {"n": 1}, recipe_params=params)[0].prompt == "xx"
    assert rows_of(tmp_path, PARAMETERS, {"n": 1}, recipe_params={"times": 3})[0].prompt == "xxx"
    sets = {
        "the same": {},
        "other parameters": {"recipe_params": {"times": 3}},
        "its own": {"recipe": recipe},
        "both": {"recipe": recipe, "recipe_params": {"times": None}},
    }
    held_out = {name.replace(" ", "_"): {"dataset": "rows.jsonl"} | chosen for name, chosen in sets.items()}
    config = DataConfig(dataset="rows.jsonl", recipe=recipe, recipe_params=params, eval_datasets=held_out)
    found = [config.of_eval_dataset(name).recipe_params for name in held_out]
    assert found == [params, {"times": 3}, {}, {"times": None}]
    with pytest.raises(ValidationError, match="every set has a recipe of its own: write recipe_params beside that"):
        DataConfig(datasets={"a": {"dataset": "rows.jsonl", "ratio": 1, "recipe": recipe}}, recipe_params=params)


def test_a_template_beside_a_recipe_of_ones_own_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match=r"data.prompt_template has no place in the recipe .*own.py:make"):
        rows_of(tmp_path, "def make(row):\n    return {'prompt': 'x'}", {"n": 1}, prompt_template="{n}")


def test_another_recipe_file_makes_the_rows_again_and_the_same_one_does_not(tmp_path: Path):
    code = "def make(row):\n    return {'prompt': 'first'}"
    kept = tmp_path / "run" / "rows-train.arrow"
    rows_of(tmp_path, code, {"n": 1})
    inode = kept.stat().st_ino
    (tmp_path / "own.py").touch()
    config = DataConfig(dataset=str(tmp_path / "rows.jsonl"), recipe=f"{tmp_path}/own.py:make")
    load_prompt_rows(config, make_tokenizer(), folder=tmp_path / "run")
    assert kept.stat().st_ino == inode
    # Of another length: Python takes a file of the same size and second for the one that it has compiled.
    (tmp_path / "own.py").write_text(code.replace("first", "another"))
    as_in_a_new_process("own")
    assert load_prompt_rows(config, make_tokenizer(), folder=tmp_path / "run")[0].prompt == "another"


def test_a_cold_start_reads_the_recipe_of_the_run_that_follows(tmp_path: Path):
    code = "def make(row, by):\n    return {'prompt': f'{row[\"n\"]}+{by}?', 'completion': str(row['n'] + by)}"
    (tmp_path / "own.py").write_text(code)
    recipe = {"recipe": f"{tmp_path}/own.py:make", "recipe_params": {"by": 1}}
    config = ColdStartData(dataset=dataset(tmp_path, {"n": 3}), **recipe)
    tokenizer = make_tokenizer()
    [example] = load_examples(config, tokenizer)
    assert tokenizer.decode(example["input_ids"], skip_special_tokens=True) == "3+1?4"
