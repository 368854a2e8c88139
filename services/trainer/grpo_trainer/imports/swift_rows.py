"""ms-swift's rows: datasets, the prompts made of them, and held-out rows."""

import ast
import json
from pathlib import Path

from ..errors import UsageError
from . import training
from .options import Options, given
from .rows import set_datasets, swift_rows
from .run_file import RunFile

LONGEST_PROMPT = 32768
"""Where the command names no limit: theirs is the model's context, which is not known here."""


QUESTIONS = ("query", "prompt", "messages")


def _columns(options: Options) -> dict[str, str]:
    """The columns that `--columns` renames: their names in the rows → those that ms-swift reads."""
    text = options.text("columns")
    if text is None:
        return {}
    try:
        mapping = json.loads(text) if '"' in text else ast.literal_eval(text)
    except (ValueError, SyntaxError) as error:
        raise UsageError(f"{options.shown('columns')} is no JSON: {error}") from error
    if not isinstance(mapping, dict):
        raise UsageError(f"{options.shown('columns')} is no mapping of columns")
    return {str(old): str(new) for old, new in mapping.items()}


def set_swift_rows(options: Options, run: RunFile) -> bool:
    """Write the rows and their prompts; return whether there are held-out rows."""
    datasets = options.values("dataset")
    if not datasets:
        raise UsageError("--dataset is missing", hint="name the rows to train on")
    columns = _columns(options)
    question = next((old for old, new in columns.items() if new in QUESTIONS), None)
    if question is not None:
        run.not_needed.append(f"{options.shown('columns')}: the question is in {question}")
    for old, new in columns.items():
        if new not in QUESTIONS and old != new:
            run.differs.append(
                f"{options.shown('columns')}: rewards get the column {old} under that name, not as {new}: rename it in "
                "the rows, or by a recipe of your own (docs/trainer.md)"
            )
    set_datasets(run, [swift_rows(name, question) for name in datasets], options.shown("dataset"))
    _set_prompts(options, run)
    held_out = options.values("val_dataset") or []
    share = options.number("split_dataset_ratio")
    if share:
        run.differs.append(
            f"{options.shown('split_dataset_ratio')}: held-out rows are a dataset of their own, data.eval_dataset; "
            "nothing is split off"
        )
    elif share is not None:
        run.not_needed.append(f"{options.shown('split_dataset_ratio')}: nothing is split off")
    strategy = options.text("eval_strategy")
    evaluates = bool(held_out) and strategy != "no"
    if strategy not in (None, "no", "steps"):
        run.differs.append(f"{options.shown('eval_strategy')}: evaluations are every so many steps, eval.eval_steps")
    elif strategy is not None:
        run.not_needed.append(f"{options.shown('eval_strategy')}: eval.eval_steps and data.eval_dataset say it")
    number = options.whole("num_generations_eval")
    if not evaluates:
        unused = given(options, "val_dataset", "num_generations_eval")
        run.not_needed += [f"{shown}: nothing is evaluated" for shown in unused]
        return False
    rows = [swift_rows(name, question) for name in held_out]
    run.differs += [row.remark for row in rows if row.remark and row.remark not in run.differs]
    run.set("data.eval_dataset", rows[0].dataset, options.shown("val_dataset"))
    run.set("data.eval_split", "train", "ms-swift's datasets for evaluation are read like those for training")
    if len(rows) > 1:
        run.differs.append(f"{options.shown('val_dataset')}: the first is evaluated; several are data.eval_datasets")
    count = number or run.value("rollout.num_generations")
    run.set(
        "eval.num_generations_eval", count, "; ".join(given(options, "num_generations_eval")) or "as num_generations"
    )
    return True


def _set_prompts(options: Options, run: RunFile) -> None:
    system = options.text("system")
    if system is not None:
        # A text file is read there by its ending; in another text, \n is a line break.
        text = system if system.endswith(".txt") else system.replace("\\n", "\n")
        run.set("data.system", text, "--system" if len(system) > 60 else options.shown("system"))
        run.differs.append("--system: it stands in place of a system message that a row has; ms-swift keeps that one")
        if system.endswith(".txt") and not Path(system).is_file():
            run.differs.append(f"{options.shown('system')}: there is no such file; write it, or give the text itself")
    thinks = options.truth("enable_thinking")
    shown = (
        options.shown("enable_thinking")
        if thinks is not None
        else "ms-swift's default for a model that may think or not; other templates do not read it"
    )
    run.set("data.chat_template_kwargs", {"enable_thinking": bool(thinks)}, shown)
    if options.truth("use_chat_template") is False:
        run.differs.append(f"{options.shown('use_chat_template')}: take data.prompt_column, whose text stays text")
    longest = options.whole("max_length")
    model_length = options.whole("vllm_max_model_len")
    strategy = options.text("truncation_strategy")
    if strategy == "delete":
        run.set("data.overlong_prompts", "drop", options.shown("truncation_strategy"))
    elif strategy != "raise" and (longest or model_length):
        said = given(options, "truncation_strategy") or ["ms-swift's default of truncation_strategy, left"]
        run.differs.append(f"{said[0]}: {training.NEVER_CUT}")
    if longest is not None:
        run.set("data.max_prompt_length", longest, options.shown("max_length"))
    elif model_length is not None and model_length > run.value("rollout.max_completion_length"):
        longest = model_length - run.value("rollout.max_completion_length")
        run.set("data.max_prompt_length", longest, "vllm_max_model_len less max_completion_length")
    else:
        run.set("data.max_prompt_length", LONGEST_PROMPT, "no max_length: ms-swift's limit is the model's context")
    training.set_micro_batch(options, run, longest)
