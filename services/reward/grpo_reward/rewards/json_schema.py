"""Structured output: JSON that follows a schema."""

import json
import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any

import jsonschema
import referencing
from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator, validator_for
from pydantic import AfterValidator
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, EMPTY_REGISTRY

from grpo_proto.nulls import without_nulls

from ..answers.place import answer_block, answered
from ..author import Score, reward
from ..fenced import last_fenced
from ..remembered import Remembered
from ..strict_json import NotStrictError, strict_json

_JSON = re.compile("jsonc?")
_SHORT_VALUES: tuple[Any, ...] = (None, 0, "", [], {})
"""Enough to find out that a schema refers to itself without end."""
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def _checked(schema: dict[str, Any]) -> dict[str, Any]:
    _compiled(json.dumps(schema))
    return schema


@reward(columns=["json_schema"])
def json_schema(
    completion: str,
    *,
    schema: Annotated[dict[str, Any], AfterValidator(_checked)] | None = None,
    json_schema: dict[str, Any] | str | None = None,
    prefix: str = "",
    truncated: bool | None = None,
) -> Score:
    """1 when the completion's JSON is valid under the schema, else 0.

    The schema is the column `json_schema` (an object, or JSON text of one, as data sets have it), and for samples where
    that is missing or null the param `schema`. In an object a key that is null is left out (but for `{"const": null}`):
    Arrow fills the keys of other rows with it. With neither the sample is unscorable, and so it is when its column is
    no schema; a param that is none refuses the request.

    The JSON is what stands in `<answer>…</answer>`, without such a block what follows the last `</think>`, without that
    the completion; a thought that never ends has none (nor does `format` pay it). If this text is no JSON as a whole,
    its last fenced block (```json, or ``` where none is marked so) is taken. Text around it scores 0.

    Decisions: JSON by RFC 8259, so NaN and Infinity are no values; an object with the same key twice is wrong, since
    readers differ in which one counts; so are numbers beyond a double's range and more than 32 nested levels. Drafts 3
    to 2020-12 by `$schema`, 2020-12 without it. `format` is not checked, as the drafts have it by default. References
    work inside the schema only: nothing is ever fetched.

    `prefix` is text the prompt has written already, such as `<think>`; it is put before the completion.

    Source: JSON Schema 2020-12, as the library jsonschema checks it. `log` has the first thing that is wrong.
    """
    chosen = schema if json_schema is None else json_schema
    try:
        if isinstance(json_schema, dict):
            chosen = without_nulls(json_schema)
        validator = _compiled(chosen if isinstance(chosen, str) else json.dumps(chosen))
    except ValueError as error:
        return Score(None, detail=f"the column json_schema cannot be used: {error}")
    if validator is None:
        return Score(None, detail="no schema: send the param schema or the column json_schema")
    try:
        value = _json_of(prefix + completion, truncated)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return _invalid(f"no JSON: {reason}")
    for problem in validator.iter_errors(value):
        return _invalid(f"{problem.json_path}: {problem.message}")
    return Score(1.0)


def _invalid(problem: str) -> Score:
    # Escapes such as \ud800 make strings that are no Unicode text, which no answer of ours could carry.
    return Score(0.0, log={"problem": problem[:200].encode(errors="replace").decode()})


def _compiled(text: str) -> Validator | None:
    """As `_built`, and those used last are remembered, of small schemas many and of large ones few."""
    return _remembered.once(text, lambda: _built(text), lambda _: len(text))


def _built(text: str) -> Validator | None:
    """The validator for JSON text of a schema; None for `null`. Raises ValueError saying what is wrong with it."""
    try:
        schema = json.loads(text)
        if schema is None:
            return None
        if not isinstance(schema, dict | bool):
            raise ValueError("a schema is a JSON object")
        kind = _with_better_checks(_draft(schema))
        kind.check_schema(schema)
        _check_references(schema, kind)
        validator = kind(schema, registry=EMPTY_REGISTRY)
        for value in _SHORT_VALUES:
            validator.is_valid(value)
    except jsonschema.SchemaError as error:
        raise ValueError(f"{error.json_path}: {error.message}"[:300]) from None
    except RecursionError:
        raise ValueError("it is nested too deeply, or a $ref leads to itself") from None
    except Unresolvable as error:
        raise ValueError(f"{error.ref} is not in the schema: put it under $defs; nothing is fetched") from None
    return validator


_remembered: Remembered[str, Validator | None] = Remembered()


@lru_cache
def _with_better_checks(kind: Any) -> Any:
    """jsonschema compares every entry of a list with every other: four thousand objects take half a minute.

    And it divides binary fractions, of which 0.3 is no multiple of 0.1.
    """

    def unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
        if wanted and isinstance(instance, list) and len({_comparable(item) for item in instance}) < len(instance):
            yield jsonschema.ValidationError("the entries of the list are not all different")

    def multiple_of(validator: Any, step: Any, instance: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
        if validator.is_type(instance, "number") and Fraction(str(instance)) % Fraction(str(step)):
            yield jsonschema.ValidationError(f"{instance!r} is not a multiple of {step}")

    return jsonschema.validators.extend(kind, {"uniqueItems": unique_items, "multipleOf": multiple_of})


def _comparable(value: Any) -> Any:
    """Equal for what JSON Schema calls equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, dict):
        return "object", frozenset((name, _comparable(item)) for name, item in value.items())
    if isinstance(value, list):
        return "list", tuple(_comparable(item) for item in value)
    return type(value) is bool, value


def _draft(schema: Any) -> Any:
    """The class of validators for the schema's draft."""
    name = schema.get("$schema") if isinstance(schema, dict) else None
    if name is None:
        return Draft202012Validator
    kind = validator_for(schema, default=None) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"$schema names no draft that is known here: {name!r:.100}")
    return kind


def _check_references(schema: Any, kind: Any) -> None:
    """Raises Unresolvable for a reference that leads out of the schema, which would else be found by some sample."""
    specification = referencing.jsonschema.specification_with(kind.META_SCHEMA["$schema"], default=DRAFT202012)
    resource = specification.create_resource(schema)
    base = resource.id() or ""
    registry = EMPTY_REGISTRY.with_resource(base, resource).crawl()
    todo = [(resource, registry.resolver(base))]
    while todo:
        resource, resolver = todo.pop()
        if isinstance(resource.contents, dict):
            for name in _REFERENCES:
                if isinstance(reference := resource.contents.get(name), str):
                    resolver.lookup(reference)
        todo += [(part, resolver.in_subresource(part)) for part in resource.subresources()]


def _json_of(completion: str, truncated: bool | None) -> Any:
    """Raises ValueError or RecursionError when there is none."""
    block = answer_block(completion, truncated=truncated)
    text = answered(completion) if block is None else block
    try:
        return strict_json(text)
    except NotStrictError:
        raise
    except ValueError:
        fenced = last_fenced(text, _JSON)
        if fenced is None:
            raise
    return strict_json(fenced)
