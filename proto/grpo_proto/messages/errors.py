"""The error body of all services, and the exceptions that a client raises for it.

ServiceError
├── InfrastructureError   the service is away, busy or late: the same call may succeed later or elsewhere
├── DataError             the request is wrong: a repeat gets the same answer
├── ConflictError         the session or the version has moved on: read the state, then decide on a new call
└── FatalError            credentials, protocol or configuration are wrong: stop and report it
"""

from functools import partial
from typing import Any

from pydantic import Field

from .base import Response


class ErrorDetail(Response):
    type: str = Field(description="A stable, machine-readable name such as `missing_column`.")
    message: str = Field(description="What is wrong, naming the value.")
    hint: str | None = Field(default=None, description="What to change.")
    retryable: bool = Field(default=False, description="True when the identical request may succeed later.")


class ErrorBody(Response):
    """Any service → its caller, with a status of 400 or more."""

    error: ErrorDetail


class ServiceError(Exception):
    """A call to a service failed. `url` names the route; `status` is None when no answer came."""

    def __init__(self, detail: ErrorDetail, *, url: str, status: int | None = None, retry_after_s: float | None = None):
        self.detail, self.url, self.status, self.retry_after_s = detail, url, status, retry_after_s
        answer = f"{status} " if status is not None else ""
        hint = f" ({detail.hint})" if detail.hint else ""
        super().__init__(f"{url}: {answer}{detail.type}: {detail.message}{hint}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the arguments of `__init__`: an exception's own way has only its text, and a pool of processes or
        Ray, which bring it to their caller, would break at it."""
        make = partial(type(self), url=self.url, status=self.status, retry_after_s=self.retry_after_s)
        return make, (self.detail,), self.__dict__


class InfrastructureError(ServiceError):
    """The service is away, busy or late."""


class DataError(ServiceError):
    """The request itself is wrong."""


class ConflictError(ServiceError):
    """409: the session or the version has moved on."""


class FatalError(ServiceError):
    """Credentials, protocol or configuration: no retry can help."""


def error_class(status: int) -> type[ServiceError]:
    """The exception for an HTTP status: 401 to 405 are a wrong set-up, 409 is a conflict, other 4xx are wrong data.

    408, 425, 429 and 5xx are faults of the infrastructure.
    """
    if 401 <= status <= 405:
        return FatalError
    if status == 409:
        return ConflictError
    if status in (408, 425, 429) or status >= 500:
        return InfrastructureError
    return DataError
