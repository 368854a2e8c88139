"""Which rows and which column the prompts of an imported command are."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.sources import find_source
from ..errors import TrainerError
from .run_file import RunFile


@dataclass(frozen=True)
class KnownRows:
    """A dataset whose columns are known here."""

    hub_name: str
    """On the Hugging Face Hub."""
    template: str | None
    """The question; None: that of `recipe`."""
    recipe: str = "none"


KNOWN = {
    "AI-MO/NuminaMath-TIR": KnownRows("AI-MO/NuminaMath-TIR", "{problem}"),
    "AI-MO/NuminaMath-CoT": KnownRows("AI-MO/NuminaMath-CoT", "{problem}"),
    "AI-MO/NuminaMath-1.5": KnownRows("AI-MO/NuminaMath-1.5", "{problem}"),
    "modelscope/gsm8k": KnownRows("openai/gsm8k:main", "{question}"),
    "openai/gsm8k": KnownRows("openai/gsm8k:main", "{question}"),
    "open-r1/DAPO-Math-17k-Processed": KnownRows("open-r1/DAPO-Math-17k-Processed:all", "{prompt}"),
    "zouxuhong/Countdown-Tasks-3to4": KnownRows("Jiayi-Pan/Countdown-Tasks-3to4", None, recipe="countdown"),
    "Jiayi-Pan/Countdown-Tasks-3to4": KnownRows("Jiayi-Pan/Countdown-Tasks-3to4", None, recipe="countdown"),
}
"""Name at ModelScope or at Hugging Face, as ms-swift registers them, → their rows."""
QUESTION_COLUMNS = ("query", "prompt", "input", "instruction", "question", "problem")
"""In which ms-swift looks for the question, in this order."""
MESSAGES = ("messages", "conversations", "conversation")


@dataclass(frozen=True)
class Rows:
    """A dataset in our words, and how its rows become prompts."""

    dataset: str
    split: str
    template: str | None
    recipe: str
    column: str | None
    """Of messages."""
    remark: str | None = None
    columns: Sequence[str] = ()
    """Those of a local file's first row."""


def swift_rows(given: str, question: str | None) -> Rows:
    """Read ms-swift's name of a dataset, `HF::org/name:subset#500`. `question` is the column of the question."""
    name, mark, count = given.partition("#")
    limit = f"#{count}" if mark else ""
    plain = re.sub(r"^(MS|HF)::", "", name)
    if Path(plain).expanduser().exists():
        return _local(plain, limit, question)
    known = KNOWN.get(plain.partition(":")[0])
    if known is not None:
        renamed = "" if known.hub_name.partition(":")[0] == plain else f"{plain} is {known.hub_name} on Hugging Face"
        template = f"{{{question}}}" if question else known.template
        return Rows(f"{known.hub_name}{limit}", "train", template, known.recipe, None, renamed or None)
    looks_like_file = plain.startswith((".", "/", "~")) or bool(
        Path(plain).suffix in (".jsonl", ".json", ".csv", ".parquet")
    )
    if looks_like_file:
        remark = f"there is no file {plain}"
    else:
        remark = f"{plain} has to be on the Hugging Face Hub; ms-swift takes ModelScope's by default"
    if question is None:
        remark += (
            f"; its columns are not known here, and data.prompt_template has to name the one of the question: ms-swift "
            f"takes the first of {', '.join(QUESTION_COLUMNS)}"
        )
    return Rows(f"{plain}{limit}", "train", f"{{{question or QUESTION_COLUMNS[0]}}}", "none", None, remark)


def _local(name: str, limit: str, question: str | None) -> Rows:
    """A file or a folder, whose first row says which columns there are."""
    known = KNOWN.get(name)
    if known is not None and question is None:
        return Rows(f"{name}{limit}", "train", known.template, known.recipe, None)
    try:
        columns = list(next(iter(find_source(name, "train").read()), {}))
    except TrainerError as error:
        return Rows(f"{name}{limit}", "train", f"{{{question or 'query'}}}", "none", None, f"{name}: {error.message}")
    if question is not None:
        return Rows(f"{name}{limit}", "train", f"{{{question}}}", "none", None)
    if messages := [column for column in MESSAGES if column in columns]:
        remark = f"{name}: a conversation that ends with the answer has to end with the question here"
        return Rows(f"{name}{limit}", "train", None, "none", messages[0], remark, columns)
    found = next((column for column in QUESTION_COLUMNS if column in columns), None)
    missing = None if found else f"{name} has none of the columns {', '.join(QUESTION_COLUMNS)}: name the question's"
    template = f"{{{found or QUESTION_COLUMNS[0]}}}"
    return Rows(f"{name}{limit}", "train", template, "none", None, missing, columns)


def set_datasets(run: RunFile, rows: Sequence[Rows], shown: str) -> None:
    """Write the rows to train on; several get ratios by their `#N`."""
    run.differs += [row.remark for row in rows if row.remark]
    first = rows[0]
    if len(rows) == 1:
        run.set("data.dataset", first.dataset, shown)
        _set_prompt(run, first)
        return
    counts = [int(count) if (count := row.dataset.partition("#")[2]) else None for row in rows]
    if None in counts:
        ratios = [round(1 / len(rows), 6)] * len(rows)
        run.differs.append(
            f"{shown}: put one behind the other there; here each is as much of the prompts, see the ratios"
        )
    else:
        total = sum(count or 0 for count in counts)
        ratios = [round((count or 0) / total, 6) for count in counts]
    ratios[-1] = round(1 - sum(ratios[:-1]), 6)
    sets: dict[str, dict[str, Any]] = {}
    for row, ratio in zip(rows, ratios, strict=True):
        plain = re.sub(r"[^A-Za-z0-9_.-]", "_", row.dataset.partition("#")[0].rpartition("/")[2])
        name = plain if plain not in sets else f"{plain}_{len(sets) + 1}"
        own = {"recipe": row.recipe, "prompt_template": row.template, "prompt_column": row.column}
        sets[name] = {"dataset": row.dataset, "ratio": ratio} | {
            key: value for key, value in own.items() if value not in (None, "none")
        }
    run.set("data.datasets", sets, shown)


def _set_prompt(run: RunFile, rows: Rows) -> None:
    if rows.recipe != "none":
        run.set("data.recipe", rows.recipe, "the question that ms-swift makes of these rows")
    if rows.template is not None:
        run.set("data.prompt_template", rows.template, "the question, as a user's message")
    if rows.column is not None:
        run.set("data.prompt_column", rows.column, "messages")
