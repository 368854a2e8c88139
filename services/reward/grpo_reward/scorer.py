"""Calling one reward on one sample, and making a plain JSON object of whatever comes back."""

import asyncio
import inspect
import reprlib
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from grpo_proto.diagnostics import MAX_DETAIL_CHARS, BeyondLimitsError, as_json, finite, sendable_log, sendable_metrics
from grpo_proto.reward_log import RewardLog
from grpo_proto.totals import BROKEN, COLUMN_FAULT

from .author import Reward, Score
from .faults import BOUNDS

MAX_CALL_CHARS = 16 * 2**20
"""Most characters of JSON that all samples of one call of a function of `completions` log: they come at once."""
PLUGIN_MODULES = "grpo_reward_plugin_"
"""The modules of plugin files are called this, and then as the file."""

Outcome = dict[str, Any]
"""What `grpo_proto.RewardScore` holds, as JSON: score, status and perhaps detail, log, metrics."""


class InvalidParamsError(Exception):
    """The params of a request do not fit the reward."""


def checked_params(reward: Reward, params: Mapping[str, Any]) -> BaseModel:
    """`params` as the function's annotations want them. Raises InvalidParamsError naming the param."""
    try:
        return reward.params.model_validate(params)
    except ValidationError as error:
        raise InvalidParamsError(_first_problem(error)) from None
    except RecursionError:  # such as a pattern with five thousand brackets
        raise InvalidParamsError("the params cannot be read: something in them is nested too deeply") from None
    except (Exception, SystemExit) as error:
        raise InvalidParamsError(f"the params cannot be read: {type(error).__name__}: {error}"[:300]) from None


def score_sample(reward: Reward, params: BaseModel, sample: Mapping[str, Any], step: int | None) -> Outcome:
    """One sample with a function of `completion`. Never raises for what the function does."""
    arguments = _params_of(params) | {"completion": sample["completion"]}
    for parameter, field in reward.fields.items():
        arguments[parameter] = sample.get(field)
    if "step" in reward.context:
        arguments["step"] = step
    columns = sample["columns"]
    for column, adapter in reward.columns.items():
        if column not in columns:
            continue
        value = columns[column]
        if adapter is not None:
            try:
                value = adapter.validate_python(value)
            except ValidationError as error:
                if value is None:  # as where rows of another task have no such column
                    return {"score": None, "status": "unscorable", "detail": f"column {column} is null"}
                return error_outcome(f"{COLUMN_FAULT}{column}: {_first_problem(error)}")
            except BaseException as error:  # a validator of the reward's own
                return failed_outcome(error)
        arguments[column] = value
    try:
        return outcome(finished(reward.function(**arguments)))
    except BaseException as error:
        # Also SystemExit and KeyboardInterrupt: a reward that wants to end the process is a reward that failed.
        return failed_outcome(error)


def score_batch(
    reward: Reward,
    params: BaseModel,
    samples: Sequence[Mapping[str, Any]],
    step: int | None,
    timeout_s: float | None = None,
) -> list[Outcome]:
    """All samples with a function of `completions`: one outcome each, all `error` when the call as a whole failed.

    A column that only some samples have is None for the others, and is not passed when none has it.
    """
    arguments = _params_of(params) | {"completions": [sample["completion"] for sample in samples]}
    for parameter, field in reward.fields.items():
        arguments[parameter] = [sample.get(field) for sample in samples]
    logged = RewardLog(len(samples))
    context = {
        "step": step,
        "timeout_s": timeout_s,
        "trainer_state": TrainerState(step),
        "log_extra": logged.log_extra,
        "log_metric": logged.log_metric,
    }
    arguments |= {name: context[name] for name in reward.context}
    there = dict.fromkeys(column for sample in samples for column in sample["columns"])
    for column in there:
        if column not in arguments and (column in reward.columns or reward.takes_all_columns):
            arguments[column] = [sample["columns"].get(column) for sample in samples]
    try:
        results = finished(reward.function(**arguments))
        if isinstance(results, str | bytes | Mapping | Set) or not hasattr(results, "__len__"):  # a set has no order
            raise TypeError(f"the reward returned {_kind(results)}, not a list of {len(samples)} scores")
        if len(results) != len(samples):
            raise ValueError(f"the reward returned {len(results)} results for {len(samples)} samples")
        return _bounded(outcome(_with_logged(result, logged, position)) for position, result in enumerate(results))
    except BaseException as error:
        return [failed_outcome(error)] * len(samples)


def _bounded(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """`outcomes` without the log and the metrics of those for which MAX_CALL_CHARS leave no place."""
    found: list[Outcome] = []
    left = MAX_CALL_CHARS
    for one in outcomes:
        extras = {key: one[key] for key in ("log", "metrics") if key in one}
        size = len(as_json(extras)) if extras else 0
        if size > left:
            left_out = f"log and metrics left out: those of one call may have {MAX_CALL_CHARS} characters of JSON"
            one = {key: value for key, value in one.items() if key not in extras}
            _add_detail(one, [left_out])
        else:
            left -= size
        found.append(one)
    return found


def finished(result: Any) -> Any:
    """What a function returned; an `async` one runs to its end here."""
    return asyncio.run(result) if inspect.iscoroutine(result) else result


@dataclass(frozen=True)
class TrainerState:
    """The part of a trainer's state that travels with a request."""

    global_step: int | None
    """None when the request has no step."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"trainer_state.{name} is not known to a reward server; trainer_state.global_step is")


def _with_logged(result: Any, logged: RewardLog, position: int) -> Any:
    """Add what a function logged to what it returned for a sample. A metric is the same for all samples, so that their
    average is the mean of what was said."""
    if not logged:
        return result
    score = result if isinstance(result, Score) else Score(result)
    columns, metrics = logged.columns_of(position), logged.means
    return replace(score, log=_joined(columns, score.log), metrics=_joined(metrics, score.metrics))


def _joined(logged: dict[str, Any], own: Any) -> Any:
    """What is no dict is left as it is, so that it is told."""
    if own is None:
        return logged
    return logged | own if isinstance(own, dict) else own


def outcome(result: Any) -> Outcome:
    """What a reward returned, as JSON."""
    if not isinstance(result, Score):
        return _scored(result)
    fields = _scored(result.score)
    if fields["status"] == "error":
        return fields
    if result.status is not None:
        if result.status not in BROKEN or result.score is not None:
            told = f"Score({_shown(result.score)}, status={_shown(result.status)})"
            return error_outcome(
                f'the reward returned {told}: beside a score of None status may be "timeout" or "error"'
            )
        fields["status"] = result.status
    if result.detail:
        fields["detail"] = str(result.detail)[:MAX_DETAIL_CHARS]
    left_out: list[str] = []
    try:
        if result.metrics is not None:
            metrics, left_out = sendable_metrics(result.metrics)
            if metrics:
                fields["metrics"] = metrics
        if result.log is not None:
            log, no_json = sendable_log(result.log)
            left_out += no_json
            if log:
                fields["log"] = log
    except BeyondLimitsError as error:
        return error_outcome(str(error))
    _add_detail(fields, left_out)
    return fields


def _add_detail(fields: Outcome, texts: Sequence[str]) -> None:
    if texts:
        fields["detail"] = "; ".join([*filter(None, [fields.get("detail")]), *texts])[:MAX_DETAIL_CHARS]


def error_outcome(detail: str) -> Outcome:
    return {"score": None, "status": "error", "detail": detail[:MAX_DETAIL_CHARS]}


def failed_outcome(error: BaseException) -> Outcome:
    try:
        name = str(type(error).__name__)
        text = str.__str__(str(error))
    except BaseException:  # it is their class: even asking for its text runs their code
        return error_outcome("the reward raised an exception that cannot be printed")
    line = line_of_plugin(error)
    where = f" ({line[0].name}, line {line[1]})" if line else ""
    told = f"{name}: {text}" if text else name
    return error_outcome(told[: MAX_DETAIL_CHARS - len(where)] + where)


def line_of_plugin(error: BaseException) -> tuple[Path, int] | None:
    """File and number of the last line the error came through that is in a plugin file."""
    found = None
    trace = error.__traceback__
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).startswith(PLUGIN_MODULES):
            found = Path(trace.tb_frame.f_code.co_filename), trace.tb_lineno
        trace = trace.tb_next
    return found


def _scored(value: Any) -> Outcome:
    if value is None:
        return {"score": None, "status": "unscorable"}
    number = finite(value)
    if number is None:
        return error_outcome(f"the reward returned {_shown(value)}, not a finite number or None")
    return {"score": number, "status": "ok"}


def _shown(value: Any) -> str:
    try:
        return repr(value)[:200]
    except ValueError:  # an integer of more digits than Python writes
        return f"a {type(value).__name__} that is too long to be shown"


def _kind(value: Any) -> str:
    """What `value` is, in words for the author of a reward, who may have forgotten `return`."""
    return "None" if value is None else f"a {type(value).__name__}"


def _params_of(params: BaseModel) -> dict[str, Any]:
    return dict(params.__dict__)


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    told = problem["msg"]
    if problem["type"].endswith("_type") or problem["type"] in BOUNDS or problem["type"] == "literal_error":
        told += f", not {reprlib.repr(problem['input'])}"
    return f"{where}: {told}" if where else told
