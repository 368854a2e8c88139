"""An exception that becomes the error body of all services."""

from typing import Self

from ..messages.errors import ErrorBody, ErrorDetail


class Refusal(Exception):  # noqa: N818 - an answer, not an error of the server
    """Answer a request with `status`, an ErrorBody and `headers`."""

    def __init__(
        self,
        status: int,
        type: str,
        message: str,
        *,
        hint: str | None = None,
        retryable: bool = False,
        headers: dict[str, str] | None = None,
    ):
        self.status, self.headers = status, headers or {}
        self.body = ErrorBody(error=ErrorDetail(type=type, message=message, hint=hint, retryable=retryable))
        super().__init__(message)

    @classmethod
    def conflict(cls, type: str, message: str, hint: str) -> Self:
        """409: a session or a version has moved on."""
        return cls(409, type, message, hint=hint)

    @classmethod
    def invalid(cls, type: str, message: str, hint: str | None = None) -> Self:
        """422: the request is readable, but a value in it is not usable."""
        return cls(422, type, message, hint=hint)

    @classmethod
    def busy(cls, status: int, type: str, message: str, retry_after_s: float, *, hint: str | None = None) -> Self:
        """429 or 503: the same request may succeed later."""
        headers = {"Retry-After": f"{retry_after_s:.0f}"}
        return cls(status, type, message, hint=hint, retryable=True, headers=headers)

    @property
    def detail(self) -> ErrorDetail:
        return self.body.error

    def json(self) -> bytes:
        """The body on the wire; its content type is application/json."""
        return self.body.model_dump_json().encode()
