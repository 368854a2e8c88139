"""The teacher of a command for ms-swift: another model, or the policy that reads a row's `teacher_prompt`."""

from .options import Options, given
from .run_file import RunFile
from .servers import FIRST_PORT

PROMPT_COLUMN = "teacher_prompt"


def set_swift_teacher(options: Options, run: RunFile) -> str | None:
    """Set the teacher; return its model where a server of ours is to have it, whose port is not known yet."""
    url, coef = options.text("teacher_model_server"), options.number("teacher_kl_coef")
    model = options.text("teacher_model") if url is None else None
    form = _form(options)
    if form != "reweight" and (asked := options.text("advantage_reweight")) is not None:
        why = "with rlsd_lambda 0 it is plain GRPO" if asked == "rlsd" else "there is no such reweighting"
        run.differs.append(f"{options.shown('advantage_reweight')}: {why}")
    if url is None and model is None and form is None:
        if coef is not None:
            run.not_needed.append(
                f"{options.shown('teacher_kl_coef')}: there is no teacher; rows with a {PROMPT_COLUMN} are taught by "
                f"the policy itself with teacher.of_itself true and teacher.prompt_column {PROMPT_COLUMN}"
            )
        return None
    if url is not None and url.lstrip().startswith(("[", "{")):
        run.differs.append(
            f"{options.shown('teacher_model_server')}: each dataset has its own teacher in data.datasets"
        )
        return None
    if url is None and model is None:
        run.set("teacher.of_itself", True, "the policy is its own teacher there without a teacher_model")
    else:
        shown = options.shown("teacher_model" if url is None else "teacher_model_server")
        run.set("teacher.url", url or f"http://127.0.0.1:{FIRST_PORT}", shown)
    if form is None:
        comment = "; ".join(given(options, "teacher_kl_coef")) or "default"
        run.set("teacher.coef", 1.0 if coef is None else coef, comment)
    else:
        _set_form(options, run, form)
    if url is not None:
        run.differs.append(f"{url}: the teacher is a rollout server: grpo-rollout serve TEACHER --port …")
    return model


def _form(options: Options) -> str | None:
    """What else than a sum theirs makes of a teacher; None for the sum."""
    if options.text("advantage_reweight") == "rlsd" and options.number("rlsd_lambda") != 0.0:
        return "reweight"
    return "gate" if (options.number("sdar_loss_coef") or 0.0) > 0.0 else None


def _set_form(options: Options, run: RunFile, form: str) -> None:
    asked = options.shown("advantage_reweight" if form == "reweight" else "sdar_loss_coef")
    run.set("teacher.prompt_column", PROMPT_COLUMN, f"{asked} reads that column of the rows")
    run.set("teacher.form", form, asked)
    if form == "gate":
        run.set("teacher.coef", options.number("sdar_loss_coef"), asked)
        _take(options, run, "sdar_gate_beta", "teacher.gate_beta")
        run.differs.append(f"{asked}: the gate is part of the advantage, inside the loss's clip and normaliser")
        return
    _take(options, run, "rlsd_lambda", "teacher.coef")
    _take(options, run, "rlsd_reweight_clip_range", "teacher.reweight_clip")
    if options.truth("rlsd_negative_only"):
        run.set("teacher.negative_only", True, options.shown("rlsd_negative_only"))
    for name in ("rlsd_lambda_warmup_steps", "rlsd_lambda_decay_steps"):
        if options.whole(name):
            run.differs.append(f"{options.shown(name)}: teacher.coef is the same in every step")


def _take(options: Options, run: RunFile, name: str, setting: str) -> None:
    number = options.number(name)
    default = options.peer.default(name)
    run.set(setting, default if number is None else number, "; ".join(given(options, name)) or f"default of {name}")
