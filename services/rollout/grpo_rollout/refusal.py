"""The one exception by which this server says no, and its body on the wire."""

from typing import Self

from grpo_proto.errors import ErrorBody, ErrorDetail


class Refused(Exception):  # noqa: N818 (reads as what happens: raise Refused)
    """An answer with a status of 400 or more and the wire's error body."""

    def __init__(
        self,
        status: int,
        type: str,
        message: str,
        *,
        hint: str | None = None,
        retryable: bool = False,
        retry_after_s: float | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s
        self.detail = ErrorDetail(type=type, message=message, hint=hint, retryable=retryable)

    @classmethod
    def conflict(cls, type: str, message: str, hint: str) -> Self:
        """409: a session or a version has moved on."""
        return cls(409, type, message, hint=hint)

    @classmethod
    def invalid(cls, type: str, message: str, hint: str | None = None) -> Self:
        """422: the request can be read, but a value in it cannot be used."""
        return cls(422, type, message, hint=hint)

    @classmethod
    def busy(cls, status: int, type: str, message: str, retry_after_s: float) -> Self:
        """429 or 503: the same request may succeed later."""
        return cls(status, type, message, retryable=True, retry_after_s=retry_after_s)

    def body(self) -> bytes:
        return ErrorBody(error=self.detail).model_dump_json().encode()

    def headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        if self.retry_after_s is not None:
            headers["Retry-After"] = f"{self.retry_after_s:.0f}"
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers
