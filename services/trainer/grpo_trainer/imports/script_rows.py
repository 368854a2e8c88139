"""Read the rows that a script gives to `GRPOTrainer`: the dataset, its split, and what it makes of them."""

import ast
from collections.abc import Iterator
from typing import Any

from .python_source import called, keywords
from .python_values import UnknownValueError
from .script_reader import Reader, is_none, short

_LOADS = ("load_dataset", "load_from_disk")
_MAKES = ("map", "filter", "select", "take", "skip", "shard", "sort", "train_test_split", "rename_column",
          "rename_columns", "concatenate_datasets", "interleave_datasets", "to_iterable_dataset",
          "from_list", "from_dict", "from_pandas", "from_generator")  # fmt: skip
"""Calls after which the rows are others."""
_STAND_IN = "rows.jsonl"
_REMEDY = "make the prompt by data.prompt_template, or by a recipe of your own (docs/trainer.md)"


def read_rows(reader: Reader) -> None:
    found, train, held_out = reader.found, reader.given.get("train_dataset"), reader.given.get("eval_dataset")
    loaded = _loaded(reader, train) if train is not None else None
    if loaded is not None:
        name, split = loaded
        found.options["dataset_name"] = name
        if split:
            found.options["dataset_train_split"] = split
    elif not reader.parses:
        found.options["dataset_name"] = _STAND_IN
        found.remark(
            f"the rows are the script's own: write them into {_STAND_IN}, by .to_json({_STAND_IN!r}) of its dataset"
            if train is not None
            else "GRPOTrainer gets no train_dataset: write episodes.num_tasks in place of data.dataset"
        )
    if train is not None and (loaded is not None or reader.parses):
        for call in reader.source.calls_behind(train, *_MAKES):
            if called(call) != "map" or not (_is_prompt(reader, call) or _is_as_options_say(reader, call)):
                what = f"{called(call)}({short(call.args[0]) if call.args else ''})"
                found.remark(f"the script changes its rows, by {what} in line {call.lineno}: {_REMEDY}")
    if held_out is None or is_none(reader.single(held_out)):
        return
    if reader.parses and isinstance(held_out, ast.IfExp) and "eval_strategy" in ast.unparse(held_out.test):
        return  # as `trl grpo` does
    other = None if isinstance(held_out, ast.Dict) else _loaded(reader, held_out)
    if other is None:
        found.remark(f"eval_dataset is {short(held_out)}: name held-out rows in data.eval_dataset or eval_datasets")
        return
    found.settings["data.eval_dataset"] = other[0]
    if other[1]:
        found.options["dataset_test_split"] = other[1]


def _loaded(reader: Reader, node: ast.expr) -> tuple[str, str | None] | None:
    """Return the dataset behind an expression, as ours is written, and its split. None: there is none, or several."""
    calls = reader.source.calls_behind(node, *_LOADS)
    known = {ast.unparse(call) for call in calls}
    if len(known) != 1:
        if known:
            reader.found.remark(f"{short(node)} is of {len(known)} datasets: write them as data.datasets")
        return None
    given = keywords(calls[0], *(("path", "name") if called(calls[0]) == "load_dataset" else ("dataset_path",)))
    place = given.get("data_files", given.get("dataset_path", given.get("path")))
    name, subset = _text(reader, place), _text(reader, given.get("name"))
    split = _text(reader, given.get("split"))
    if split is None:
        split = next(_subscripts(reader, node), None)
    elif isinstance(split, list):  # train, test = load_dataset(…, split=[…, …])
        split = split[-1] if node is reader.given.get("eval_dataset") else split[0]
    if isinstance(name, dict):
        name = name.get(split or "train")
        split = None
    if not isinstance(name, str):
        reader.found.remark(f"the dataset is {short(place or calls[0])}: name one in data.dataset")
        return None
    dataset = f"{name}:{subset}" if isinstance(subset, str) and "data_files" not in given else name
    plain, bracket, end = str(split or "").partition("[")
    if bracket and (count := end.removeprefix(":").removesuffix("]")).isdecimal() and end.startswith(":"):
        dataset = f"{dataset}#{count}"
    elif bracket:
        reader.found.remark(f"of {plain} all rows are read, not [{end}")
    return dataset, plain or None


def _text(reader: Reader, node: ast.expr | None) -> Any:
    try:
        return reader.values.of(node) if node is not None else None
    except UnknownValueError:
        return None


def _subscripts(reader: Reader, node: ast.expr) -> Iterator[str]:
    """Yield the splits of `load_dataset(…)["train"]`, also by the names between the two."""
    for part in reader.source.behind(node):
        if isinstance(part, ast.Subscript) and reader.source.calls_behind(part.value, *_LOADS):
            split = _text(reader, part.slice)
            if isinstance(split, str):
                yield split
            else:
                reader.found.remark(f"the split is {short(part.slice)}: write it as data.split")


def _is_prompt(reader: Reader, call: ast.Call) -> bool:
    """Set column and system prompt where a `map` makes messages of one column, and changes nothing else of a row."""
    function = call.args[0] if call.args else keywords(call).get("function", call)
    body = reader.source.functions.get(getattr(function, "id", ""), function)
    if not isinstance(body, ast.Lambda | ast.FunctionDef) or not body.args.args:
        return False
    row = body.args.args[0].arg
    made = next((part for part in ast.walk(body) if isinstance(part, ast.Dict) and "prompt" in _parts(part)), None)
    if made is None:
        return False
    *system, (role, asked) = list(_messages(made)) or [("", made)]
    column = _column(asked, row)
    if role != "user" or column is None or len(system) > 1 or any(role != "system" for role, _ in system):
        return False
    reader.found.options["dataset_prompt_column"] = column
    for _, text in system:
        reader.set("system_prompt", text, "the system prompt is")
    others = {key: value for key, value in _parts(made).items() if key != "prompt" and _column(value, row) != key}
    for key, value in others.items():
        reader.found.remark(f"the column {key} is {short(value)} of a row: {_REMEDY}")
    return True


def _is_as_options_say(reader: Reader, call: ast.Call) -> bool:
    """Return whether a `map` makes the prompt of the column that an option of the command line names, as open-r1's."""
    function = reader.source.functions.get(getattr(call.args[0], "id", "")) if call.args else None
    parts = ast.walk(function) if function is not None and reader.parses else ()
    return any(isinstance(part, ast.Attribute) and part.attr == "dataset_prompt_column" for part in parts)


def _column(node: ast.AST, row: str) -> str | None:
    """Return the column that `row["column"]` is."""
    match node:
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(column))) if name == row:
            return column
    return None


def _messages(made: ast.Dict) -> Iterator[tuple[str, ast.expr]]:
    """Yield role and content of each message of a dictionary's `prompt`."""
    prompt = _parts(made).get("prompt")
    for message in prompt.elts if isinstance(prompt, ast.List) else ():
        parts = _parts(message) if isinstance(message, ast.Dict) else {}
        if isinstance(role := parts.get("role"), ast.Constant) and "content" in parts:
            yield str(role.value), parts["content"]


def _parts(made: ast.Dict) -> dict[Any, ast.expr]:
    pairs = zip(made.keys, made.values, strict=True)
    return {key.value: value for key, value in pairs if isinstance(key, ast.Constant)}
