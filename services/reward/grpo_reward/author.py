"""How a reward is written: a function with typed keyword parameters under `@reward`.

    @reward
    def digits(completion: str, *, solution: str, bonus: float = 0.1) -> float | None: ...

One parameter decides the shape. `completion`: the function scores one sample. `completions`: it scores all samples of
a request in one call and returns a list, as TRL and ms-swift have it; every column is then a list, too. It may be
`async`: each call gets an event loop of its own, so only one of `completions` can wait for many things at once.

Every other parameter is one of three things:

- a *field* of the sample, by its name: `prompt`, `completion_token_ids`, `truncated`, `step` (for `completions`:
  `prompts`, `completion_ids`, `truncated`, `step`). Without a default, samples that lack it are refused. For
  `completions` also what TRL passes: `trainer_state`, of which `global_step` is known, `log_extra(column, values)` and
  `log_metric(name, value)`, and `timeout_s`, after which the call is killed and no sample of it has a score;
- a *column* of the dataset: every name in `columns`, or without `columns` every parameter that has no default. The
  conversation of an episode of several turns comes as the column `messages`, and `completion` is what was said last;
- a *param* of the request, checked against its annotation: every other one.

What it returns: a finite number (True is 1, False is 0; NumPy's and torch's will do), None (not its task: `unscorable`)
or a `Score`, which alone can say that something broke for one sample of many. Anything else is status `error`.
"""

import inspect
import reprlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo

from grpo_proto.code_hash import code_hash

from .reward_names import refused_name

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

SAMPLE_FIELDS = {"prompt": "prompt", "completion_token_ids": "completion_token_ids", "truncated": "truncated"}
BATCH_FIELDS = {"prompts": "prompt", "completion_ids": "completion_token_ids", "truncated": "truncated"}
"""Parameter name → field of the sample."""
_TEXTS = ("completion", "completions")
_OF_THE_OTHER = {name: field for name, field in BATCH_FIELDS.items() if name != field}
"""What a function of `completions` takes, and what it is called for a function of `completion`."""
_NO_NUMBER = {"float_type", "int_type", "bool_type"}
_NOT_OURS = {"value_error", "assertion_error", "finite_number"}
"""Pydantic's faults that a default may have: what the author's validators say, and infinity, for having no limit."""
CONTEXT = ("timeout_s", "trainer_state", "log_extra", "log_metric")
"""Parameters of a function of `completions` that belong to the request, as `step` does for all."""


@dataclass(frozen=True, slots=True)
class Score:
    """A score with more to say. `score` None is unscorable; `detail` tells why it is what it is."""

    score: float | None
    detail: str | None = None
    log: dict[str, Any] | None = None
    """Columns for the completion log; one that is no JSON is left out, and the detail says so."""
    metrics: dict[str, float] | None = None
    """Finite numbers to average over the batch; others are left out, and the detail says so."""
    status: Literal["timeout", "error"] | None = None
    """With a `score` of None: what the reward asked was late or failed. Such a sample has no total and is scored again;
    without a status None is `unscorable`, and the sample's total is the sum of the other rewards."""


@dataclass(frozen=True)
class Reward:
    """A function and what its signature says about it."""

    name: str
    function: Callable[..., Any]
    documentation: str
    batch: bool
    fields: dict[str, str]
    """Parameter → field of the sample."""
    required_fields: list[str]
    columns: dict[str, TypeAdapter[Any] | None]
    """Column → what its values must be; None when the author annotated nothing."""
    required_columns: list[str]
    params: type[BaseModel]
    context: frozenset[str]
    """What it takes of `step` and CONTEXT."""
    takes_all_columns: bool
    """A batch function with `**kwargs` gets every column that any sample has."""
    code_hash: str
    """Digest of the file the function is written in, and of those it imports relatively; see `code_hash.py`. With
    `--reward-model` the model is a part of it."""


MARKED: list[Reward] = []
"""All that `@reward` has made. A file is held against it: a second function of the same name hides the first."""


@overload
def reward(function: FunctionT, /) -> FunctionT: ...
@overload
def reward(*, name: str | None = None, columns: Sequence[str] | None = None) -> Callable[[FunctionT], FunctionT]: ...
def reward(
    function: FunctionT | None = None, /, *, name: str | None = None, columns: Sequence[str] | None = None
) -> FunctionT | Callable[[FunctionT], FunctionT]:
    """Make a reward of a function. It stays a plain function that can be called and tested.

    Args:
        name: its name in requests; the function's own when None.
        columns: the parameters that are dataset columns; those without a default when None.

    Raises TypeError when the signature fits no reward.
    """

    def mark(function: FunctionT) -> FunctionT:
        mark = _inspect(function, name, columns)
        function.__reward__ = mark  # type: ignore[attr-defined]
        MARKED.append(mark)
        return function

    return mark if function is None else mark(function)


def _inspect(function: Callable[..., Any], name: str | None, columns: Sequence[str] | None) -> Reward:
    if not inspect.isfunction(inspect.unwrap(function)):
        raise TypeError(f"@reward is for functions, and {reprlib.repr(function)} is none: write a def that calls it")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"reward {function.__name__}: its name must be a text, not {name!r}")
    name = name or function.__name__
    where = f"reward {name}"
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    if parameters and parameters[0].name in ("self", "cls"):
        raise TypeError(f"{where}: it is a method, and nobody makes its object: put @reward above a function")
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise TypeError(f"{where}: {parameter.name} must be a parameter that can be given by name: take the / out")
    texts = [parameter for parameter in parameters if parameter.name in _TEXTS]
    if not texts:
        raise TypeError(f"{where}: a parameter must be called `completion` or `completions`")
    if len(texts) > 1:
        raise TypeError(
            f"{where}: it takes both `completion` and `completions`: keep `completion` to score one sample in a call, "
            "or `completions` to score all of a request"
        )
    text = texts[0]
    parameters.remove(text)
    batch = text.name == "completions"
    _refuse_names_of_the_other(where, batch, {p.name for p in parameters} - set(columns or ()))
    known_fields = BATCH_FIELDS if batch else SAMPLE_FIELDS
    for unknown in sorted(set(columns or ()) - {parameter.name for parameter in parameters}):
        raise TypeError(f"{where}: the function has no parameter for the column {unknown}")

    fields: dict[str, str] = {}
    required_fields: list[str] = []
    checks: dict[str, TypeAdapter[Any] | None] = {}
    required_columns: list[str] = []
    params: dict[str, Any] = {}
    context: set[str] = set()
    takes_all_columns = False
    for parameter in parameters:
        required = parameter.default is inspect.Parameter.empty
        annotated = parameter.annotation is not inspect.Parameter.empty
        if parameter.kind is inspect.Parameter.VAR_KEYWORD and batch:
            takes_all_columns = True
        elif parameter.kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL):
            raise TypeError(f"{where}: name every parameter instead of *{parameter.name}")
        elif parameter.name == "step" or (batch and parameter.name in CONTEXT):
            context.add(parameter.name)
        elif parameter.name in known_fields:
            fields[parameter.name] = known_fields[parameter.name]
            if required and not batch:
                required_fields.append(known_fields[parameter.name])
        elif (parameter.name in columns) if columns is not None else required:
            checks[parameter.name] = TypeAdapter(parameter.annotation) if annotated and not batch else None
            if required:
                required_columns.append(parameter.name)
            elif annotated and not batch:
                column = {parameter.name: (parameter.annotation, parameter.default)}
                _refuse_default(where, parameter, params_model(name, column).model_validate)
        else:
            params[parameter.name] = (
                parameter.annotation if annotated else Any,
                ... if required else parameter.default,
            )
    if problem := refused_name(name):
        raise TypeError(f'reward {name!r}: {problem}, as in @reward(name="mine")')
    model = params_model(name, params)
    for parameter in parameters:
        if parameter.name in params:
            _refuse_default(where, parameter, model.model_validate)
    return Reward(
        name=name,
        function=function,
        documentation=inspect.getdoc(function) or "",
        batch=batch,
        fields=fields,
        required_fields=required_fields,
        columns=checks,
        required_columns=required_columns,
        params=model,
        context=frozenset(context),
        takes_all_columns=takes_all_columns,
        code_hash=code_hash(Path(inspect.getfile(inspect.unwrap(function)))),
    )


def _refuse_names_of_the_other(where: str, batch: bool, names: set[str]) -> None:
    """A field by the name that it has in the other shape would be taken for a column, which no sample has."""
    text, other = reversed(_TEXTS) if batch else _TEXTS
    here = {one: many for many, one in _OF_THE_OTHER.items()} if batch else _OF_THE_OTHER
    for name in sorted(names & set(here)):
        raise TypeError(
            f"{where}: {name} belongs to a function of `{other}`, and this one takes `{text}`: call it {here[name]}, "
            f'or say columns=["{name}", …] if the dataset has such a column'
        )


def _refuse_default(where: str, parameter: inspect.Parameter, check: Callable[..., Any]) -> None:
    """Raises TypeError when a default is not what its annotation says. None always fits: it is what nothing is.

    A text is no number here, though in a request one may stand for it: a default is not converted. What a validator of
    the author's says does not count, as it may depend on other params.
    """
    default, annotation = parameter.default, parameter.annotation
    if default is None or default is parameter.empty or isinstance(default, FieldInfo):
        return
    if annotation in (parameter.empty, type(default)):
        return
    for strict in (False, True) if isinstance(default, str) else (False,):
        try:
            check({parameter.name: default}, strict=strict)
        except ValidationError as error:
            for problem in error.errors(include_url=False, include_context=False):
                kind = problem["type"]
                counts = kind in _NO_NUMBER if strict else kind not in _NOT_OURS
                if counts and problem["loc"][0] == parameter.name:
                    raise TypeError(
                        f"{where}: the default of {parameter.name}, {reprlib.repr(default)}, does not fit its "
                        f"annotation {inspect.formatannotation(annotation)}: {problem['msg']}"
                    ) from None
        except Exception:  # of such a validator
            return


def params_model(name: str, params: dict[str, Any]) -> type[BaseModel]:
    """Checks the params of a request: name → (annotation, default or `...`)."""
    with warnings.catch_warnings():
        # A param called `schema` or `json` shadows a method of pydantic's that nobody calls on this model.
        warnings.filterwarnings("ignore", message="Field name .* shadows an attribute", category=UserWarning)
        return create_model(f"{name}_params", __config__=_PARAMS_CONFIG, **params)


# A param called `schema` or `model_…` is an author's right.
_PARAMS_CONFIG = ConfigDict(extra="forbid", allow_inf_nan=False, protected_namespaces=(), title="params")
