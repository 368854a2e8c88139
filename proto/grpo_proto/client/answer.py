"""Read the answer of a server that may send anything, within a limit; an error quotes what came.

Read piece by piece up to a limit: a wrong URL may lead to a page, a redirect, a file of gigabytes or an endless stream.
Ask for plain bytes and never decompress: a few compressed bytes may stand for gigabytes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import httpx
from pydantic import ValidationError

from ..messages.base import PROTOCOL_VERSION, Response
from ..messages.errors import ErrorBody, ErrorDetail, FatalError, InfrastructureError, ServiceError, error_class

ResponseT = TypeVar("ResponseT", bound=Response)

MAX_ERROR_BYTES = 64 * 1024
"""Bytes read of an answer that reports an error; the rest is left."""
SHOWN_CHARS = 200
"""Characters that an error quotes of a body that is not the expected message."""
SERVICES = {"rollout": "rollout server", "reward": "reward server", "trainer": "live page of a trainer"}
"""`service` of an `/info` → what answers."""
PLAIN = {"Accept-Encoding": "identity"}


@dataclass(frozen=True)
class Answer:
    """Status, headers, and the part of the body that was read."""

    status: int
    headers: Mapping[str, str]
    body: bytes | bytearray

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")

    @property
    def retry_after_s(self) -> float | None:
        """Seconds of `Retry-After`; None without the header, and for a date or anything else."""
        try:
            seconds = float(self.headers["Retry-After"])
        except (KeyError, ValueError):
            return None
        return seconds if math.isfinite(seconds) and seconds >= 0 else None

    def message(self, kind: type[ResponseT], url: str) -> ResponseT:
        """The body as a `kind`. Raises ServiceError when the answer is an error, or not a `kind`."""
        if not 200 <= self.status < 300:
            raise self._error(url)
        try:
            return kind.model_validate_json(self.body)
        except ValidationError as error:
            # Leave the input out: it may be the whole body.
            problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
            place = ".".join(map(str, problem["loc"]))
            if "logprobs" in problem["loc"]:
                raise self._no_logprob(place, url) from error
            if place == "service" and str(found := error.errors()[0]["input"]) in SERVICES:
                raise self._wrong_service(found, url) from error
            reason = f"{place}: {problem['msg']}" if place else problem["msg"]
            detail = ErrorDetail(
                type="malformed_answer",
                message=f"the answer is not a {kind.__name__}: {reason[:300]}; {self._quoted_body()}",
                hint=f"is a grpo-services server of protocol {PROTOCOL_VERSION} listening there?",
            )
            raise FatalError(detail, url=url, status=self.status) from error

    def _wrong_service(self, found: str, url: str) -> FatalError:
        """The error for the report of another service of ours than the one that was asked."""
        detail = ErrorDetail(
            type="wrong_service",
            message=f"the {SERVICES[found]} of grpo-services answers there",
            hint="is the URL right?",
        )
        return FatalError(detail, url=url, status=self.status)

    def _no_logprob(self, place: str, url: str) -> InfrastructureError:
        """The error for a logprob that is NaN, infinite, or null, which some servers send for both."""
        detail = ErrorDetail(
            type="logprob_not_finite",
            message=f"{place} of the answer is no finite number: the served weights, or a kernel, computed none",
            hint="look for NaN in the policy's weights; without any, use another dtype or attention backend there",
        )
        return InfrastructureError(detail, url=url, status=self.status)

    def _quoted_body(self) -> str:
        if not self.body:
            return "it is empty"
        media_type = self.headers.get("Content-Type", "no content type")[:SHOWN_CHARS]
        return f"it is {media_type} and begins with {self.text[:SHOWN_CHARS]!r}"

    def _error(self, url: str) -> ServiceError:
        if 300 <= self.status < 400:
            target = self.headers.get("Location", "no Location")[:300]
            detail = ErrorDetail(
                type="redirected",
                message=f"the answer is a redirect to {target}, which the client has not followed",
                hint="give the URL of the server itself",
            )
            return FatalError(detail, url=url, status=self.status)
        try:
            detail = ErrorBody.model_validate_json(self.body).error
        except ValidationError:
            detail = ErrorDetail(
                type="unexpected_answer",
                message=f"{httpx.codes.get_reason_phrase(self.status) or self.status}; {self._quoted_body()}",
                hint="is a grpo-services server listening there?",
            )
        kind = error_class(self.status)
        return kind(detail, url=url, status=self.status, retry_after_s=self.retry_after_s)


async def read_answer(response: httpx.Response, max_bytes: int, url: str) -> Answer:
    """Read an answer; of an error, read the beginning. Raises FatalError when it is compressed or exceeds `max_bytes`.

    The caller closes the response, which closes the connection unless the answer was read to its end.
    """
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise FatalError(
            ErrorDetail(
                type="answer_compressed",
                message=f"the answer is compressed ({encoding[:SHOWN_CHARS]}), though the client asked for plain bytes",
                hint="is it a grpo-services server? A proxy before it must heed Accept-Encoding",
            ),
            url=url,
            status=response.status_code,
        )
    length = response.headers.get("Content-Length", "")
    too_large = response.is_success and length.isdigit() and int(length[:20]) > max_bytes
    body = bytearray()
    if not too_large:
        async for piece in response.aiter_bytes():  # plain: nothing is decompressed
            body += piece
            if not response.is_success and len(body) >= MAX_ERROR_BYTES:
                break
            if len(body) > max_bytes:
                too_large = True
                break
    if too_large:
        raise FatalError(
            ErrorDetail(
                type="answer_too_large",
                message=f"the answer is larger than {max_bytes:,} bytes, the limit for this request",
                hint="is the URL right?",
            ),
            url=url,
            status=response.status_code,
        )
    return Answer(response.status_code, response.headers, body)
