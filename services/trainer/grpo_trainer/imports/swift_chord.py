"""ms-swift's CHORD: demonstrations beside the samples."""

from ..config.swift_options import CHORD
from .batch import Batch
from .options import Options, given
from .rows import Rows, swift_rows
from .run_file import RunFile
from .swift_rows import LONGEST_PROMPT

ANSWERS = (
    "response", "answer", "output", "targets", "target", "answer_key", "answers", "solution", "text", "completion",
    "content",
)  # fmt: skip
"""The columns in which ms-swift looks for the answer, in this order, where a row is no conversation."""
_OF_MU = {f"chord_mu_{name}": f"mu_{name}" for name in ("peak", "valley", "warmup_steps", "decay_steps")}


def set_chord(options: Options, run: RunFile, batch: Batch) -> None:
    """Write the section `chord` of a command that names demonstrations."""
    datasets = options.values("chord_sft_dataset") or []
    if not datasets:
        run.not_needed += [f"{shown}: no chord_sft_dataset is named" for shown in given(options, *CHORD)]
        return
    shown = options.shown("chord_sft_dataset")
    rows = swift_rows(datasets[0], None)
    run.set("chord.sft_dataset", rows.dataset, shown)
    if len(datasets) > 1:
        run.differs.append(f"{shown}: demonstrations are one dataset: join the files; the first is taken")
    if rows.column is not None:
        run.set("chord.sft_recipe", "none", "conversations")
        run.set("chord.learned_messages", "all", "ms-swift learns each message of the assistant")
        run.set("chord.messages_column", rows.column, "the column of the conversations")
    else:
        _set_columns(run, rows)
    longest = options.whole("max_length")
    run.set("chord.sft_max_length", longest or LONGEST_PROMPT, "max_length" if longest else "no max_length")
    run.differs.append(
        "a demonstration longer than chord.sft_max_length is refused, and their loss is a mean over the tokens of an "
        "update; ms-swift drops or cuts it, and takes the mean of each micro-batch"
    )
    per_device = options.whole("chord_sft_per_device_train_batch_size") or 1
    # Theirs takes so many on each device beside every micro-batch of samples.
    samples = options.whole("per_device_train_batch_size") or options.peer.default("per_device_train_batch_size")
    times = batch.size // (batch.updates * samples)
    run.set(
        "chord.sft_batch_size",
        per_device * times,
        f"chord_sft_per_device_train_batch_size {per_device} x {times} of them in an update",
    )
    for option, setting in _OF_MU.items():
        value = options.whole(option) if setting.endswith("_steps") else options.number(option)
        if value is not None:
            run.set(f"chord.{setting}", value, options.shown(option))
        elif setting == "mu_peak":
            run.differs.append("chord_mu_peak is missing, which ms-swift needs, too: set chord.mu_peak")
    peak, valley = run.value("chord.mu_peak"), run.value("chord.mu_valley")
    if valley is not None and not run.value("chord.mu_decay_steps"):  # there as soon as the warm-up ends
        run.set("chord.mu_peak", valley, f"{options.shown('chord_mu_valley')}: there is no decay")
        run.entries.pop("chord.mu_valley")
    elif valley == peak:
        run.entries.pop("chord.mu_decay_steps", None)
    if options.truth("chord_enable_phi_function"):
        run.set("chord.enable_phi_function", True, options.shown("chord_enable_phi_function"))


def _set_columns(run: RunFile, rows: Rows) -> None:
    """Write which columns are question and answer."""
    if rows.remark:
        run.differs.append(rows.remark.replace("data.prompt_template", "chord.sft_prompt_template"))
    if rows.recipe != "none":
        run.set("chord.sft_recipe", rows.recipe, "the question that ms-swift makes of these rows")
    else:
        run.set("chord.sft_prompt_template", rows.template, "the question, as a user's message")
    answer = next((column for column in ANSWERS if column in rows.columns), None)
    run.set("chord.completion_column", answer or ANSWERS[0], "the answer")
    if answer is None:
        run.differs.append(
            f"{rows.dataset}: which column the answer is in is not known here: name it in chord.completion_column; "
            f"ms-swift takes the first of {', '.join(ANSWERS)}"
        )
