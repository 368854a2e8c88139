"""From the bytes of a body to the message in it, on the event loop: so what a body may cost has bounds.

A body has at most `--max-body-mib`, but one of millions of tiny values could still be a minute of work, while nobody
gets an answer. What takes that long is cut off: of more samples than the server takes none is looked at, a body with
thousands of faults is refused without naming one, and the garbage collector, which would go through all that is new
again and again, waits until the message is whole.
"""

import contextlib
import gc
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, Field, ValidationError, create_model

from .refusal import Refusal, invalid_request

BodyT = TypeVar("BodyT", bound=BaseModel)
MAX_VALUES, VALUES_PER_TEXT, VALUES_PER_CONTAINER = 4_000_000, 8, 4
"""Values in one body, and as how many a text or the name of a field counts, and an object or a list: that is about what
they cost. A body of the greatest size has as many token ids, of four bytes each and more, and 4,096 samples may have
six columns, a dialogue of ten messages and 300 token ids each. Reading all of it takes a fifth of a second."""
MAX_NAMED_FAULTS = 1_000
"""Naming a fault takes 4 µs or more, and three are told."""


class Reader(Generic[BodyT]):
    """Reads the bodies of one route.

    Args:
        model: the message.
        known_fields: what the hint for a misspelt field chooses from.
        samples: the field of `model` whose list is as long as the samples are many; None when there is one sample.
        max_samples: the most.
    """

    def __init__(self, model: type[BodyT], known_fields: Iterable[str], *, samples: str | None, max_samples: int):
        self._known_fields, self._samples = list(known_fields), samples
        self._model = _at_most(model, samples, max_samples) if samples else model

    def read(self, body: bytes) -> BodyT:
        """The message. Raises Refusal: 400 for no JSON, 413 for too much of it, 422 for what is no message."""
        check_number_of_values(body)
        with collector_waits():
            try:
                return self._model.model_validate_json(body)
            except ValidationError as error:
                num_faults = error.error_count()
                if num_faults > MAX_NAMED_FAULTS:
                    raise self._too_many_faults(num_faults) from None
                # Without its way back to here: that would be a circle, which keeps the body until the next collection.
                refused = error.with_traceback(None)
        try:
            raise self._refusal(refused)
        finally:
            del refused

    def _too_many_faults(self, num_faults: int) -> Refusal:
        fields = ", ".join(self._model.model_fields)
        return Refusal(
            422,
            "invalid_value",
            f"the body has {num_faults} faults, too many to tell",
            hint=f"it must be an object with the fields {fields}; GET /openapi.json tells what they hold",
        )

    def _refusal(self, error: ValidationError) -> Refusal:
        for problem in error.errors(include_url=False, include_input=False):
            if problem["type"] == "too_long" and problem["loc"] == (self._samples,):
                return Refusal(
                    413,
                    "too_many_samples",
                    f"the request has {problem['ctx']['actual_length']} samples; "
                    f"the limit is {problem['ctx']['max_length']}",
                    hint="send several requests, or start the server with a larger --max-samples",
                )
        return invalid_request(error, self._known_fields)


def check_number_of_values(body: bytes) -> None:
    """Raises Refusal 413 for more values than parsing should take time for. Exact for JSON, at any rate cheap."""
    num_texts = body.count(b'"') // 2
    if _num_values(body, num_texts) <= MAX_VALUES:  # also what only stands in texts
        return
    if b"\\" in body:  # so that every quotation mark that is left begins or ends a text
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
        num_texts = body.count(b'"') // 2
    outside = b"" if _num_values(b"", num_texts) > MAX_VALUES else b"".join(body.split(b'"')[::2])
    if _num_values(outside, num_texts) <= MAX_VALUES:
        return
    raise Refusal(
        413,
        "too_many_values",
        f"the body has more than {MAX_VALUES} values, of which a text or a name counts as {VALUES_PER_TEXT} and an"
        f" object or a list as {VALUES_PER_CONTAINER}",
        hint="send several requests",
    )


def _num_values(outside_texts: bytes, num_texts: int) -> int:
    num_containers = outside_texts.count(b"{") + outside_texts.count(b"[")
    return outside_texts.count(b",") + VALUES_PER_TEXT * num_texts + VALUES_PER_CONTAINER * num_containers


def _at_most(model: type[BodyT], field: str, max_samples: int) -> type[BodyT]:
    """`model`, refusing a list that is too long before its entries are looked at."""
    of_old = model.model_fields[field]
    bounded: Any = (Annotated[of_old.annotation, *of_old.metadata, Field(max_length=max_samples)], ...)
    return create_model(model.__name__, __base__=model, **{field: bounded})


@contextlib.contextmanager
def collector_waits() -> Iterator[None]:
    """Keep the collector away from work that makes many objects at once, and does not wait for anything."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
