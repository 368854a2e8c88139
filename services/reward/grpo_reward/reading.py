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
MAX_CONTAINERS, MAX_STRINGS, MAX_VALUES = 250_000, 1_000_000, 4_000_000
"""Objects with lists, texts with names of fields, and values of all kinds in one body. A thousand samples with their
dialogues have some ten thousand of the first two; most of the third are token ids, of five bytes each."""
MAX_NAMED_FAULTS = 20_000
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
                    raise Refusal(422, "invalid_value", f"the body has {num_faults} faults, too many to tell") from None
                # Without its way back to here: that would be a circle, which keeps the body until the next collection.
                refused = error.with_traceback(None)
        try:
            raise self._refusal(refused)
        finally:
            del refused

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
    few_values = body.count(b",") <= MAX_VALUES
    if few_values and body.count(b"{") + body.count(b"[") <= MAX_CONTAINERS and body.count(b'"') <= 2 * MAX_STRINGS:
        return
    if b"\\" in body:  # so that every quotation mark that is left begins or ends a text
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if body.count(b'"') <= 2 * MAX_STRINGS:
        outside = b"".join(body.split(b'"')[::2])
        if outside.count(b"{") + outside.count(b"[") <= MAX_CONTAINERS and outside.count(b",") <= MAX_VALUES:
            return
    raise Refusal(
        413,
        "too_many_values",
        f"the body has more than {MAX_CONTAINERS} objects and lists, {MAX_STRINGS} texts or {MAX_VALUES} values",
        hint="send several requests",
    )


def _at_most(model: type[BodyT], field: str, max_samples: int) -> type[BodyT]:
    """`model`, refusing a list that is too long before its entries are looked at."""
    bounded: Any = (Annotated[model.model_fields[field].annotation, Field(max_length=max_samples)], ...)
    return create_model(model.__name__, __base__=model, **{field: bounded})


@contextlib.contextmanager
def collector_waits() -> Iterator[None]:
    """For work that makes many objects at once, and does not wait for anything."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
