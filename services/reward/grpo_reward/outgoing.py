"""Calls from a reward to a model server that the operator has allowed. `judge` and `reward_model` make them.

Whoever may send a request could otherwise make this server call any address it can reach. So a URL must begin with one
of the operator's (`--allowed-url`), no redirect is followed, no proxy of the environment is used, and an answer has a
greatest size. Keys come from the environment, go to allowed URLs alone and never into a message.
"""

import asyncio
import json
import os
import re
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import Any, Literal, Self

import httpx
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_before_delay, wait_exponential_jitter

from grpo_proto.client.certificates import trusted_certificates

from .author import Score

ALLOWED_VARIABLE = "GRPO_REWARD_ALLOWED_URL"
MAX_ANSWER_BYTES = 4 * 2**20
MAX_REASON_CHARS = 200
MAX_REASON_BYTES = 2**14
"""What is read of an error: much more than is shown, so that a key in it is found whole."""

_NOT_PRINTABLE = re.compile(r"[^\x21-\x7e]")
_UNWANTED = re.compile(r"[\\%?#@]|\.\.|//")
"""What one parser of URLs reads differently from another, or could lead out of the allowed path."""


class UrlNotAllowedError(Exception):
    """The operator has not allowed this URL, or it is none."""


class NoAnswerError(Exception):
    """A call brought nothing. The message says why and holds no secrets; `status` is that of the score it was for."""

    status: Literal["timeout", "error"] = "error"


class _LateError(NoAnswerError):
    """The call's time was over."""

    status = "timeout"


class _PassingError(NoAnswerError):
    """Worth another try. `retry_after_s` is what the server asked for."""

    def __init__(self, message: str, retry_after_s: float = 0.0):
        self.retry_after_s = retry_after_s
        super().__init__(message)


def allowed_url(url: str) -> httpx.URL:
    """`url` as it will be called. Raises UrlNotAllowedError.

    It must have the scheme, host and port of one of the comma-separated URLs in GRPO_REWARD_ALLOWED_URL, and its path
    must begin with that one's path at a boundary: `/v1` allows `/v1` and `/v1/models`, not `/v10`.
    """
    wanted = parsed_url(url)
    for prefix in os.environ.get(ALLOWED_VARIABLE, "").split(","):
        if prefix.strip() and _begins_with(wanted, parsed_url(prefix.strip())):
            return wanted
    raise UrlNotAllowedError(f"the operator has to allow {url[:200]} with --allowed-url")


def parsed_url(url: str) -> httpx.URL:
    """Parsed by the library that will call it, so that no two readings can differ."""
    scheme, _, rest = url.partition("://")
    problem = None
    if scheme.lower() not in ("http", "https") or not rest:
        problem = "it must begin with http:// or https://"
    elif _NOT_PRINTABLE.search(url):
        problem = "it has white space or characters that are not ASCII"
    elif odd := _UNWANTED.search(rest):
        problem = f"it must not contain {odd.group()}"
    else:
        try:
            parsed = httpx.URL(url)
            if parsed.host:
                return parsed
            problem = "it has no host"
        except (httpx.InvalidURL, UnicodeError) as error:
            problem = str(error)
    raise UrlNotAllowedError(f"{url[:200]!r} cannot be called: {problem}")


def _begins_with(url: httpx.URL, prefix: httpx.URL) -> bool:
    return _origin(url) == _origin(prefix) and f"{url.path.rstrip('/')}/".startswith(f"{prefix.path.rstrip('/')}/")


def _origin(url: httpx.URL) -> tuple[str, str, int]:
    return url.scheme, url.host.lower(), {"http": 80, "https": 443}[url.scheme] if url.port is None else url.port


class Outgoing:
    """POSTs JSON to one route. An asynchronous context manager: it keeps its connections while it is open.

    Waits for: one of `max_concurrency` slots. Unblocked by: a call that ends, at the latest after `timeout_s`.

    Args:
        url: what `route` is appended to. UrlNotAllowedError unless the operator has allowed it.
        route: such as "/chat/completions".
        key_variable: environment variable whose value, if there is one, is sent as bearer token.
        max_concurrency: calls at once.
        timeout_s: limit for one call with all its repeats, not counting the wait for a slot.
    """

    def __init__(self, url: str, route: str, *, key_variable: str, max_concurrency: int, timeout_s: float):
        base = allowed_url(url)
        self._url = base.copy_with(path=base.path.rstrip("/") + route)
        self._key = os.environ.get(key_variable, "").strip()
        if _NOT_PRINTABLE.search(self._key):
            raise ValueError(f"the environment variable {key_variable} holds characters that no key has")
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(max_concurrency)
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        self._http = httpx.AsyncClient(
            headers=headers | ({"Authorization": f"Bearer {self._key}"} if self._key else {}),
            timeout=None,  # noqa: S113 - `post` has one for all of a call
            limits=httpx.Limits(max_connections=max_concurrency),
            follow_redirects=False,
            trust_env=False,
            verify=trusted_certificates() if self._url.scheme == "https" else False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def post(self, body: dict[str, Any]) -> bytes:
        """The answer to `body`. Repeats after 429, 5xx and broken connections. Raises NoAnswerError."""
        content = json.dumps(body).encode()
        last: NoAnswerError | None = None
        async with self._slots:
            try:
                async with asyncio.timeout(self._timeout_s):
                    async for attempt in AsyncRetrying(
                        retry=retry_if_exception_type(_PassingError),
                        stop=stop_before_delay(self._timeout_s),
                        wait=_pause_s,
                        reraise=True,
                    ):
                        with attempt:
                            try:
                                return await self._once(content)
                            except NoAnswerError as error:
                                last = error
                                raise
            except TimeoutError:
                late = f"no answer within {self._timeout_s:g} s"
                if last is None:
                    raise _LateError(late) from None
                # An error, as where the time ends between two attempts: it is the failures that took it.
                raise NoAnswerError(f"{late}; before that {last}") from None
        raise AssertionError("unreachable: the last attempt re-raises")

    async def _once(self, content: bytes) -> bytes:
        try:
            async with self._http.stream("POST", self._url, content=content) as response:
                if response.is_success:
                    return await _body(response)
                reason = await self._reason(response)
                if response.status_code == 429 or response.status_code >= 500:
                    raise _PassingError(reason, _seconds(response.headers.get("Retry-After")))
                raise NoAnswerError(reason)
        except httpx.TransportError as error:
            raise _PassingError(self._without_key(f"{type(error).__name__}: {error}")) from None

    async def _reason(self, response: httpx.Response) -> str:
        status = f"it answered {response.status_code}"
        if response.is_redirect:
            return f"{status}, and redirects are not followed"
        if response.status_code in (401, 403):  # such answers like to quote the key
            return f"{status}: its key is wrong or missing"
        text = b""
        async for piece in response.aiter_raw():
            text += piece
            if len(text) >= MAX_REASON_BYTES:
                break
        # The key goes before the text is cut, so that no piece of it is left at the end.
        reason = " ".join(self._without_key(text.decode(errors="replace"))[:MAX_REASON_CHARS].split())
        return f"{status}: {reason}" if reason else status

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "…") if self._key else text


async def in_time(calls: Iterable[Coroutine[Any, Any, Score]], timeout_s: float | None, late: str) -> list[Score]:
    """The scores of all calls, in order. What is not there after nine tenths of `timeout_s` is a `timeout`: `late`.

    Otherwise the whole request would be killed at `timeout_s`, and those that have answered lost with it.
    """
    tasks = [asyncio.ensure_future(call) for call in calls]
    if not tasks:
        return []
    limit_s = None if timeout_s is None else 0.9 * timeout_s
    _, waiting = await asyncio.wait(tasks, timeout=limit_s)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    why = f"{late}: no answer within {limit_s:g} s of the request's {timeout_s:g}" if waiting else late
    missing = Score(None, status="timeout", detail=why)
    return [missing if task in waiting else task.result() for task in tasks]


async def _body(response: httpx.Response) -> bytes:
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise NoAnswerError("its answer is compressed, though that was not asked for")
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > MAX_ANSWER_BYTES:
            raise NoAnswerError(f"its answer is larger than {MAX_ANSWER_BYTES // 2**20} MiB")
    return bytes(body)


_backoff_s = wait_exponential_jitter(multiplier=0.2, max=10.0, jitter=0.3)


def _pause_s(state: RetryCallState) -> float:
    """Back-off with jitter, or longer when the server asked for it."""
    error = state.outcome.exception() if state.outcome else None
    return max(_backoff_s(state), error.retry_after_s if isinstance(error, _PassingError) else 0.0)


def _seconds(header: str | None) -> float:
    """The seconds of a Retry-After; 0 for a date, or when there is none."""
    return float(header) if header and header.isascii() and header.isdigit() and len(header) < 10 else 0.0
