"""Files of samples: one JSON object per line.

What a line means:

- `completion` (text, or messages, of which counts what the assistant writes), and if they are there `prompt` (text or
  messages), `completion_token_ids`, `truncated`, `step` and `id` are the sample;
- `rewards`, `total` and `group` are what an earlier scoring said, and which samples belong together;
- with an object `columns` its entries are the columns, and nothing else is; without it every other key is a column.

A line with `step`, `group`, `index` and `rewards` is one of a trainer's completions.jsonl or eval_completions.jsonl.
Its other keys (`advantage`, `versions`, …) are no columns, and `finish_reason`, or `status` of an episode, says whether
it was truncated; an episode's `messages` are of the sample. It has no columns: those are in the dataset of the run, at
the place that `row` says. When its log has rolled over, its older parts are read with it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from grpo_proto import ScoreSample
from grpo_proto.log_parts import parts_of

from ..adapters.completion import completion_text
from ..adapters.text import plain_prompt
from ..config import ConfigError
from ..refusal import nearest
from .options import CommandFailed

SAMPLE_KEYS = ("completion", "prompt", "completion_token_ids", "truncated")
OTHER_KEYS = ("id", "step", "rewards", "total", "group", "columns")
NO_COLUMNS = "the line has no columns: with the completions.jsonl of a run, --dataset names the file that has them"
TRAINER_LOGS = ("completions.jsonl", "eval_completions.jsonl")
TRAINER_KEYS = {"step", "group", "index", "rewards"}

EXAMPLE_LINE = '{"completion": "…"}'
GZIP_MAGIC = b"\x1f\x8b"
_HOLE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Row:
    """One line. `where` is the file and the line, `name` what people call the sample."""

    where: str
    name: str
    sample: ScoreSample
    step: int | None
    group: str | None
    """Samples of one prompt have the same; None when the line has neither `group` nor `prompt`."""
    scores: Mapping[str, float | None]
    """What the line says about rewards; None for one without a score."""
    total: float | None
    has_total: bool
    expect: float | None
    """The score it must have, for `test`; None also when it must have none."""
    expects: bool
    """Whether the line says so."""


def read_rows(
    path: Path, *, dataset: Path | None = None, gold: str | None = None, with_expect: bool = False
) -> list[Row]:
    """The samples of a file.

    Args:
        dataset: JSON lines whose line number `row` (from 0) has the columns of a sample.
        gold: makes the completion, from a column's name or a text with `{column}` in it.
        with_expect: `expect` is the score that the line must have, and no column.

    Raises CommandFailed naming file and line, ConfigError when `gold` fits no column.
    """
    parts = {part.name: json_lines(part) for part in files_of(path)}
    lines = [line for of_part in parts.values() for line in of_part]
    if not lines:
        raise CommandFailed(f"{path} is empty: wanted is one object such as {EXAMPLE_LINE} on each line")
    if dataset:
        _check_one_dataset(path, lines)
    others = [values for _, values in json_lines(dataset)] if dataset else None
    options: dict[str, Any] = {"others": others, "dataset": dataset, "gold": gold, "with_expect": with_expect}
    return [row for name, of_part in parts.items() for row in rows_of(name, of_part, **options)]


def files_of(path: Path) -> Iterator[Path]:
    """Yield `path`, and before it the older parts of a trainer's log."""
    return parts_of(path) if path.name in TRAINER_LOGS else iter([path])


def rows_of(
    name: str,
    lines: Sequence[tuple[int, dict[str, Any]]],
    *,
    others: Sequence[dict[str, Any]] | None = None,
    dataset: Path | None = None,
    gold: str | None = None,
    with_expect: bool = False,
) -> list[Row]:
    """The samples of (line number, object) pairs; see `read_rows`."""
    rows = []
    for number, values in lines:
        where = f"{name}:{number}"
        if others is not None:
            values = _joined(where, values, others, dataset)
        rows.append(_row(where, number, values, gold, with_expect))
    return rows


def json_lines(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """(line number from 1, object) of every line that is not blank. Raises CommandFailed."""
    found = []
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                    if line.startswith(GZIP_MAGIC):
                        raise CommandFailed(
                            f"{path} is compressed: gzip -dc {path} | grpo-reward … with - for the file"
                        )
                if line.strip():
                    found.append((number, _object(path, number, line)))
    except OSError as error:
        raise CommandFailed(f"{path} cannot be read: {error.strerror or error}") from None
    return found


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        # Also refuses NaN and halves of characters, which no request can carry.
        value = from_json(line.rstrip(), allow_inf_nan=False)
    except ValueError as error:
        wanted = f"; wanted is one object such as {EXAMPLE_LINE} on each line" if number == 1 else ""
        # The parser saw one line and calls it the first; the number that helps is that of the file.
        told = str(error).replace(" at line 1 column ", " at column ")
        raise CommandFailed(f"{path}, line {number}: no JSON: {told}{wanted}") from None
    if not isinstance(value, dict):
        raise CommandFailed(f"{path}, line {number}: a line must be an object such as {EXAMPLE_LINE}")
    return value


def _check_one_dataset(path: Path, lines: Sequence[tuple[int, dict[str, Any]]]) -> None:
    """Refuse the lines of a run with several datasets: `row` counts within each."""
    names = sorted({str(values.get("dataset", "")) for _, values in lines if values.keys() >= TRAINER_KEYS})
    if len(names) > 1:
        raise CommandFailed(
            f"{path} has samples of the datasets {', '.join(names)}, and --dataset names the rows of one: score each "
            f'by itself: grep \'"dataset": "{names[-1]}"\' {path} | grpo-reward score - --dataset …'
        )


def _joined(
    where: str, values: dict[str, Any], others: Sequence[dict[str, Any]], dataset: Path | None
) -> dict[str, Any]:
    position = values.get("row")
    if isinstance(position, bool) or not isinstance(position, int) or not 0 <= position < len(others):
        got = f"row is {position!r}" if "row" in values else "there is no row"
        raise CommandFailed(f"{where}: {got}, but --dataset {dataset} has the rows 0 to {len(others) - 1}")
    columns = others[position] | _columns(where, values)
    return {key: values[key] for key in values if key != "row"} | {"columns": columns}


def _row(where: str, number: int, values: dict[str, Any], gold: str | None, with_expect: bool) -> Row:
    columns = _columns(where, values)
    expects = with_expect and "expect" in values
    if with_expect:
        columns = {name: value for name, value in columns.items() if name != "expect"}
    fields = {key: values[key] for key in SAMPLE_KEYS if key in values}
    if gold is not None:
        fields["completion"] = _filled(where, gold, columns)
    if values.keys() >= TRAINER_KEYS and values.get("finish_reason") is not None:
        cut = values["status"] == "truncated" if "status" in values else values["finish_reason"] == "length"
        fields.setdefault("truncated", cut)
        if "messages" in values:
            fields["messages"] = values["messages"]
    if "completion" not in fields:
        # `solution` only looks alike: it is what most rewards compare with.
        hint = nearest("completion", values.keys() - {"solution"})
        if not hint.startswith("did you mean"):
            hint = nearest("", values)
        raise CommandFailed(f"{where}: there is no completion; {hint.replace('known: ', 'the line has ')}")
    try:
        fields["completion"] = completion_text(fields["completion"], "completion")
    except TypeError as error:
        raise CommandFailed(f"{where}: {error}") from None
    if isinstance(fields.get("prompt"), list) and all(isinstance(message, dict) for message in fields["prompt"]):
        fields["prompt"] = plain_prompt(fields["prompt"])
    try:
        sample = ScoreSample(id=where, columns=columns, **fields)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        path = ".".join(map(str, problem["loc"]))
        raise CommandFailed(f"{where}: {path}: {problem['msg']}, not {problem['input']!r:.60}") from None
    step = values.get("step")
    return Row(
        where=where,
        name=_name(number, values),
        sample=sample,
        step=step if isinstance(step, int) and not isinstance(step, bool) and step >= 0 else None,
        group=_group(values),
        scores=_scores(where, values.get("rewards")),
        total=_number(where, "total", values.get("total")),
        has_total="total" in values,
        expect=_number(where, "expect", values.get("expect")) if expects else None,
        expects=expects,
    )


def _columns(where: str, values: Mapping[str, Any]) -> dict[str, Any]:
    if "columns" in values:
        columns = values["columns"]
        if not isinstance(columns, dict):
            raise CommandFailed(f"{where}: columns must be an object, not {columns!r:.60}")
        return columns
    if values.keys() >= TRAINER_KEYS:
        return {}
    return {key: value for key, value in values.items() if key not in SAMPLE_KEYS and key not in OTHER_KEYS}


def _name(number: int, values: Mapping[str, Any]) -> str:
    if values.get("id") is not None:
        return str(values["id"])
    if values.keys() >= TRAINER_KEYS:
        return f"step {values['step']} group {values['group']} index {values['index']}"
    return f"line {number}"


def _group(values: Mapping[str, Any]) -> str | None:
    """A trainer counts its groups through the run, and those of an evaluation in each held-out set and decoding; other
    files may begin anew with every step."""
    key = next((key for key in ("group", "prompt") if values.get(key) is not None), None)
    if key is None:
        return None
    within = [values.get(name) for name in ("dataset", "decoding")] if values.keys() >= TRAINER_KEYS else []
    return repr((values.get("step"), *within, key, values[key]))


def _scores(where: str, rewards: Any) -> dict[str, float | None]:
    """Either `{"format": 1.0}` or, as trainers and `--out` write it, `{"format": {"score": 1.0, …}}`."""
    if rewards is None:
        return {}
    if not isinstance(rewards, dict):
        raise CommandFailed(f"{where}: rewards must be an object of scores, not {rewards!r:.60}")
    return {
        name: _number(where, f"rewards.{name}", value.get("score") if isinstance(value, dict) else value)
        for name, value in rewards.items()
    }


def _number(where: str, key: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CommandFailed(f"{where}: {key} must be a number or null, not {value!r:.60}")
    return float(value)


def _filled(where: str, gold: str, columns: Mapping[str, Any]) -> str:
    """A column's text, or the template with every `{column}` replaced; other braces stay, as in `\\boxed{{answer}}`."""
    if gold in columns:
        return str(columns[gold])
    holes = set(_HOLE.findall(gold)) & columns.keys()
    if not holes:
        hint = nearest((_HOLE.findall(gold) or [gold])[0], columns)
        raise ConfigError(f"--gold {gold}: neither a column of {where} nor a text with one in braces; {hint}")
    return _HOLE.sub(lambda hole: str(columns[hole[1]]) if hole[1] in holes else hole[0], gold)


def missing_columns(rows: Sequence[Row], needed: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """What is wrong, for each reward of which a row lacks a column. `needed`: reward → its columns."""
    for reward, columns in needed.items():
        for column in columns:
            lacking = [row for row in rows if not row.sample.has_column(column)]
            if lacking:
                there = lacking[0].sample.columns
                hint = nearest(column, there).replace("known: ", "it has ") if there else NO_COLUMNS
                yield (
                    f"{lacking[0].where}: {reward} needs the column {column}"
                    f"{f', which {len(lacking)} lines lack' if len(lacking) > 1 else ''}; {hint}"
                )


def check_columns(rows: Sequence[Row], needed: Mapping[str, Sequence[str]]) -> None:
    """Raises CommandFailed."""
    for problem in missing_columns(rows, needed):
        raise CommandFailed(problem)
