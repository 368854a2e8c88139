"""Parameters: keyword arguments that a run file gives to a function that it names, checked by the function's signature.

The first arguments of such a function are what the trainer calls it with, such as the `counts` of a normaliser. All
that it takes beyond them are its parameters: those without a default have to be in the run file, and those with an
annotation take what pydantic accepts for it, as the parameters of rewards do.
"""

import copy
import difflib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import Parameter
from types import SimpleNamespace
from typing import Any, TypeVar, get_type_hints

from pydantic import ConfigDict, PydanticUserError, ValidationError, create_model
from pydantic.errors import PydanticUndefinedAnnotation

from .errors import UsageError

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

CONFIG = ConfigDict(allow_inf_nan=False)


def with_parameters(
    function: FunctionT, given: Mapping[str, Any], *, called_with: Sequence[str], name: str, setting: str, key: str
) -> FunctionT:
    """`function` with what the run file gives, as its annotations say. What it declares (`@reads`) stays.

    `called_with`: the arguments that the trainer calls it with, by position. The run file has its `name` in `setting`
    and `given` in `key`. Raises UsageError for a function that cannot be called so, for a parameter that it
    does not have, for a missing one and for a value that does not fit its annotation.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # some of those written in C
        signature = inspect.Signature([Parameter("arguments", Parameter.VAR_POSITIONAL)])
    parameters = parameters_of(signature, called_with)
    hint = f"its parameters: {_listed(parameters)}"
    takes_any = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    unknown = [one for one in given if one not in parameters]
    if unknown and not takes_any:
        close = difflib.get_close_matches(unknown[0], parameters, n=1)
        raise UsageError(
            f"{key}: {name} has no parameter {unknown[0]}{f'; did you mean {close[0]}?' if close else ''}", hint
        )
    missing = [one for one, parameter in parameters.items() if _is_required(parameter) and one not in given]
    try:
        # First without the parameters: an argument that the function lacks is no parameter that the run file lacks.
        signature.bind_partial(*called_with)
        if not missing:
            signature.bind(*called_with, **given)
    except TypeError as error:
        called = f"{getattr(function, '__name__', 'it')}({', '.join([*called_with, *given])})"
        raise UsageError(f"{setting}: {name} cannot be called as {called}: {error}", hint) from error
    if missing:
        raise UsageError(f"{key}: {name} needs a value for {', '.join(missing)}", hint)
    if not given:
        return function
    values = {
        one: _checked(value, parameters[one], function, f"{key}.{one}", f"{name}; {hint}")
        if one in parameters
        else copy.deepcopy(value)
        for one, value in given.items()
    }

    @wraps(function)
    def call(*arguments: Any) -> Any:
        return function(*arguments, **values)

    return call  # type: ignore[return-value]


def parameters_of(signature: inspect.Signature, called_with: Sequence[str]) -> dict[str, Parameter]:
    """What a function takes by name beyond the arguments that it is called with."""
    by_position = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    positional = [parameter for parameter in signature.parameters.values() if parameter.kind in by_position]
    left = [p for p in positional[len(called_with) :] if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
    by_keyword = [p for p in signature.parameters.values() if p.kind is Parameter.KEYWORD_ONLY]
    return {parameter.name: parameter for parameter in [*left, *by_keyword]}


def _is_required(parameter: Parameter) -> bool:
    return parameter.default is Parameter.empty


def _listed(parameters: Mapping[str, Parameter]) -> str:
    return ", ".join(one if _is_required(p) else f"{one} = {p.default!r}" for one, p in parameters.items()) or "none"


def _checked(value: Any, parameter: Parameter, function: Callable[..., Any], where: str, hint: str) -> Any:
    """A copy of `value` as the parameter's annotation says."""
    try:
        model = create_model("Parameter", __config__=CONFIG, value=(_annotation(value, parameter, function), ...))
        found = model.model_validate({"value": copy.deepcopy(value)}).value  # type: ignore[attr-defined]
        if isinstance(value, bool) and not isinstance(found, bool):
            raise UsageError(f"{where}: a number is expected (got {value})", hint)
        return found
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        path = ".".join([where, *map(str, problem["loc"][1:])])
        text = problem["msg"].removeprefix("Value error, ")
        raise UsageError(f"{path}: {text} (got {problem['input']!r})", hint) from error
    except (PydanticUserError, PydanticUndefinedAnnotation, NameError, SyntaxError, TypeError) as error:
        raise UsageError(
            f"{where}: no value can be checked by the annotation {inspect.formatannotation(parameter.annotation)}: "
            f"{str(error).splitlines()[0]}",
            hint,
        ) from error


def _annotation(value: Any, parameter: Parameter, function: Callable[..., Any]) -> Any:
    """The annotation; one of text, as with `from __future__ import annotations`, is looked up in the function's file.

    Only that of this parameter: others may name what is imported for type checkers alone.
    """
    if parameter.annotation is Parameter.empty:
        # YAML reads 1e-3 as text.
        return float if isinstance(value, str) and type(parameter.default) in (int, float) else Any
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    holder = SimpleNamespace(__annotations__={"value": parameter.annotation})
    return get_type_hints(holder, globalns=vars(sys.modules[function.__module__]), include_extras=True)["value"]
