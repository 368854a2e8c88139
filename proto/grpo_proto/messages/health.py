"""The answers of `GET /livez` and `GET /readyz`."""

from typing import Self

from .base import Response


class Health(Response):
    """Any service → a probe. 200 when `ok`, else 503."""

    ok: bool
    detail: str | None = None

    @classmethod
    def unless(cls, problem: str | None) -> Self:
        """A report that is `ok` unless there is a `problem`, which becomes its `detail`."""
        return cls(ok=problem is None, detail=problem)
