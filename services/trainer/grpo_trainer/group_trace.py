"""The trace that a group carries from its prompt to its gradient; `sampling/tracing.py` makes it."""

from typing import Protocol

Attribute = str | int | float


class GroupTrace(Protocol):
    """The trace of one group. Its stages follow each other; `end` ends the last one, and is the end."""

    @property
    def trace_id(self) -> str | None:
        """32 hexadecimal digits; None without tracing."""

    @property
    def traceparent(self) -> str | None:
        """The stage that is open, as the header of W3C Trace Context has it."""

    def enter(self, stage: str) -> None: ...

    def end(self, outcome: str, *, failed: bool = False, **attributes: Attribute) -> None: ...


class NoTrace:
    """Trace that records nothing: without tracing, and for groups that are not trained on."""

    trace_id = traceparent = None

    def enter(self, stage: str) -> None: ...

    def end(self, outcome: str, *, failed: bool = False, **attributes: Attribute) -> None: ...


NO_TRACE = NoTrace()
