"""Typed HTTP clients of the two servers: a timeout on every call, retries only where a repeat is safe.

Retried after an infrastructure error: every GET, `score` and `logprobs` (they have no effects) and `rollouts` (a
repeated `request_id` aborts the older request). A weights call is never retried here: its caller reads the state first.
"""

import asyncio
import logging
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import httpx
from pydantic import ValidationError
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential_jitter

from ..api_token import TOKEN_VARIABLE, is_sendable
from ..messages.base import Request
from ..messages.errors import ErrorDetail, FatalError, InfrastructureError
from ..messages.health import Health
from ..messages.logprobs import LogprobsRequest, LogprobsResponse
from ..messages.reward import RewardInfo, RewardList, ScoreRequest, ScoreResponse
from ..messages.rollout import RolloutInfo, RolloutRequest, RolloutResponse
from ..messages.weights import (
    AbortRequest,
    BeginRequest,
    CloseRequest,
    CommitRequest,
    RenewRequest,
    SessionRequest,
    WeightState,
)
from ..server_url import checked_url
from .answer import PLAIN, Answer, ResponseT, read_answer
from .certificates import trusted_certificates

SLACK_S = 10.0
"""Added to a request's deadline for the client's timeout, so that the answer that reports the deadline arrives."""
RETRY_HEADER = "x-stainless-retry-count"
"""By which a session's turn knows a retry: it joins the turn that runs, or gets its recorded answer."""
WAITING_TOLD_S, WAITING_TOLD_AGAIN_S = 5.0, 30.0
"""Seconds of retries until the first warning, and between two warnings."""
KEEP_CONNECTION_S = 3.0
"""How long to keep an idle connection. Shorter than any server, of which some close it after 5 s (as uvicorn does):
otherwise a call would now and then meet a closing connection, and a weights call is not retried."""
MAX_INFO_BYTES = 16 * 2**20
"""Largest answer to a GET, in bytes: a server's report of itself."""
MAX_ANSWER_BYTES = 256 * 2**20
"""Largest other answer, in bytes. A reward server sends up to 32 MiB of logs, and 250,000 scores in under 100 MiB."""
BYTES_PER_TOKEN = 256
"""Bytes allowed on top for each token that a rollout request asks for. Id, logprob and text take about 40, and with the
longest token of a vocabulary (128 blanks) under 200."""

log = logging.getLogger("grpo_proto.client.clients")


class ServiceClient:
    """A connection pool to one server. Use it as an asynchronous context manager.

    Args:
        base_url: such as `http://127.0.0.1:8000`.
        token: bearer token; `GRPO_API_TOKEN` of the environment when None.
        probe_timeout_s: timeout of the GET routes, which answer from memory.
        transport: replaces the network, for tests.

    Raises ValueError when `base_url` is not the URL of a server, or the token cannot be sent.
    """

    def __init__(
        self,
        base_url: str,
        *,
        token: str | None = None,
        probe_timeout_s: float = 5.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ):
        self.base_url = checked_url(base_url).rstrip("/")
        token = (token if token is not None else os.environ.get(TOKEN_VARIABLE, "")).strip()
        if not is_sendable(token):
            raise ValueError(
                f"the token (${TOKEN_VARIABLE}) holds a character that no header carries: use printable ASCII"
            )
        self.probe_timeout_s = probe_timeout_s
        # Ignore the environment's proxy: it is for the outside world, never for these servers. That also ignores
        # SSL_CERT_FILE, so read it here.
        self._http = httpx.AsyncClient(
            base_url=self.base_url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=KEEP_CONNECTION_S),
            transport=transport,
            trust_env=False,
            verify=trusted_certificates() if self.base_url.startswith("https://") else True,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def livez(self) -> Health:
        return await self._health("/livez")

    async def readyz(self) -> Health:
        return await self._health("/readyz")

    async def _health(self, path: str) -> Health:
        """A 503 is a report here, not an error. Raises ServiceError for any other status, and when no answer comes."""
        answer = await self._send("GET", path, None, self.probe_timeout_s, MAX_INFO_BYTES)
        if answer.status in (200, 503):
            try:
                return Health.model_validate_json(answer.body)
            except ValidationError:
                return Health(ok=answer.status == 200, detail=answer.text[:200])
        return answer.message(Health, self._url(path))

    async def _get(self, path: str, answer: type[ResponseT], *, retry_for_s: float = 0.0) -> ResponseT:
        return await self._retry(retry_for_s, "GET", path, None, answer, self.probe_timeout_s, MAX_INFO_BYTES)

    async def _retry(
        self,
        retry_for_s: float,
        method: str,
        path: str,
        body: Request | None,
        answer: type[ResponseT],
        timeout_s: float,
        max_bytes: int = MAX_ANSWER_BYTES,
        *,
        key: str | None = None,
    ) -> ResponseT:
        """Retry after infrastructure errors, with backoff and jitter, until `retry_for_s` after the first failure.

        `key`: replaces the server's token; the request then counts its tries in `RETRY_HEADER`.

        Logs a warning when the server is away for longer than a busy server would be, and again at intervals.
        """
        logged_s = WAITING_TOLD_S - WAITING_TOLD_AGAIN_S
        first_failure_s: float | None = None

        def is_over(state: RetryCallState) -> bool:
            """Count the retry budget from the first failure: a request that fails after ten minutes is retried, too."""
            nonlocal first_failure_s
            since_start_s = state.seconds_since_start or 0.0
            if first_failure_s is None:
                first_failure_s = since_start_s
            return since_start_s - first_failure_s >= retry_for_s

        def log_failure(state: RetryCallState) -> None:
            nonlocal logged_s
            waited_s = state.seconds_since_start or 0.0
            if state.outcome is not None and waited_s >= logged_s + WAITING_TOLD_AGAIN_S:
                logged_s = waited_s
                left_s = max(0.0, retry_for_s - (waited_s - (first_failure_s or 0.0)))
                told = "retrying once more" if left_s == 0.0 else f"retrying for {left_s:.0f} s more"
                log.warning("%s; %s (%.0f s until now)", state.outcome.exception(), told, waited_s)

        attempts = AsyncRetrying(
            retry=retry_if_exception_type(InfrastructureError),
            stop=is_over,
            wait=wait_exponential_jitter(multiplier=0.2, max=10.0),
            before_sleep=log_failure,
            reraise=True,
        )
        async for attempt in attempts:
            with attempt:
                tried = attempt.retry_state.attempt_number - 1
                headers = {"Authorization": f"Bearer {key}", RETRY_HEADER: str(tried)} if key is not None else {}
                sent = await self._send(method, path, body, timeout_s, max_bytes, headers)
                return sent.message(answer, self._url(path))
        raise AssertionError("unreachable: the last attempt re-raises")

    async def _call(
        self,
        method: str,
        path: str,
        body: Request | None,
        answer: type[ResponseT],
        timeout_s: float,
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> ResponseT:
        return (await self._send(method, path, body, timeout_s, max_bytes)).message(answer, self._url(path))

    async def _send(
        self,
        method: str,
        path: str,
        body: Request | None,
        timeout_s: float,
        max_bytes: int = MAX_ANSWER_BYTES,
        more_headers: Mapping[str, str] = {},
    ) -> Answer:
        """The server's answer, of any status, within `timeout_s` and `max_bytes`. Raises ServiceError without one."""
        content = body.model_dump_json(exclude=body.left_open()).encode() if body is not None else None
        headers = PLAIN | ({"Content-Type": "application/json"} if content is not None else {}) | dict(more_headers)
        timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, self.probe_timeout_s))
        try:
            # Bound the whole call: httpx bounds each part of an answer, so a server that drips would never be late.
            async with asyncio.timeout(timeout_s):
                async with self._http.stream(
                    method, path, content=content, headers=headers, timeout=timeout
                ) as response:
                    return await read_answer(response, max_bytes, self._url(path))
        except (httpx.TimeoutException, TimeoutError) as error:
            kind = "unreachable" if isinstance(error, httpx.ConnectTimeout) else "no_answer"
            detail = ErrorDetail(type=kind, message=f"no answer within {timeout_s:g} s", retryable=True)
            raise InfrastructureError(detail, url=self._url(path)) from error
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            # `broken_off`: the request may have reached the server, and been its end.
            kind = "unreachable" if isinstance(error, httpx.ConnectError) else "broken_off"
            detail = ErrorDetail(type=kind, message=reason, hint="is the server running there?", retryable=True)
            raise InfrastructureError(detail, url=self._url(path)) from error

    def _url(self, path: str) -> str:
        return f"{self.base_url}{path}"


class RewardClient(ServiceClient):
    """The reward server's routes."""

    async def info(self, *, retry_for_s: float = 0.0) -> RewardInfo:
        return await self._get("/info", RewardInfo, retry_for_s=retry_for_s)

    async def rewards(self, *, retry_for_s: float = 0.0) -> RewardList:
        return await self._get("/v1/rewards", RewardList, retry_for_s=retry_for_s)

    async def score(self, request: ScoreRequest, *, retry_for_s: float = 0.0) -> ScoreResponse:
        """Score a batch. Raises FatalError when the results do not match the samples one to one, or lack a reward."""
        timeout_s = request.deadline_s + SLACK_S
        response = await self._retry(retry_for_s, "POST", "/v1/score", request, ScoreResponse, timeout_s)
        expected = [sample.id or str(position) for position, sample in enumerate(request.samples)]
        names = {reward.name for reward in request.rewards}
        if [result.id for result in response.results] != expected:
            message = f"the {len(response.results)} results do not match the {len(expected)} samples sent"
        elif any(not names <= result.rewards.keys() for result in response.results):
            message = f"a result lacks one of {', '.join(sorted(names)):.200}"
        else:
            return response
        detail = ErrorDetail(
            type="mismatched_results",
            message=message,
            hint="a reward server must return one result for every sample, in order, with every reward",
        )
        raise FatalError(detail, url=self._url("/v1/score"), status=200)


class RolloutClient(ServiceClient):
    """The rollout server's routes for samples and for logprobs."""

    async def info(self, *, retry_for_s: float = 0.0) -> RolloutInfo:
        return await self._get("/info", RolloutInfo, retry_for_s=retry_for_s)

    async def rollouts(self, request: RolloutRequest, *, retry_for_s: float = 0.0) -> RolloutResponse:
        timeout_s = request.deadline_s + SLACK_S
        num_tokens = len(request.prompts) * request.n * request.sampling.max_tokens
        max_bytes = MAX_ANSWER_BYTES + BYTES_PER_TOKEN * num_tokens
        return await self._retry(retry_for_s, "POST", "/v1/rollouts", request, RolloutResponse, timeout_s, max_bytes)

    async def logprobs(self, request: LogprobsRequest, *, retry_for_s: float = 0.0) -> LogprobsResponse:
        """Score given tokens. Raises FatalError when the answer does not match the sequences one to one."""
        path, timeout_s = "/v1/logprobs", request.deadline_s + SLACK_S
        wanted = [sequence.num_scored for sequence in request.sequences]
        max_bytes = MAX_ANSWER_BYTES + BYTES_PER_TOKEN * sum(wanted)
        response = await self._retry(retry_for_s, "POST", path, request, LogprobsResponse, timeout_s, max_bytes)
        if [len(sequence.logprobs) for sequence in response.sequences] != wanted:
            detail = ErrorDetail(
                type="mismatched_results",
                message=f"the logprobs of {len(response.sequences)} sequences do not match the {len(wanted)} sent",
                hint="a rollout server must return one logprob for every token after the prompt",
            )
            raise FatalError(detail, url=self._url(path), status=200)
        return response


class WeightsClient(ServiceClient):
    """The rollout server's routes for weights. Its POST and DELETE calls are never retried."""

    async def state(self) -> WeightState:
        return await self._get("/v1/weights", WeightState)

    async def session(self, request: SessionRequest) -> WeightState:
        return await self._weights("POST", "session", request, request.deadline_s)

    async def close_session(self, request: CloseRequest, *, timeout_s: float = 30.0) -> WeightState:
        return await self._weights("DELETE", "session", request, timeout_s)

    async def renew(self, request: RenewRequest, *, timeout_s: float = 10.0) -> WeightState:
        return await self._weights("POST", "renew", request, timeout_s)

    async def begin(self, request: BeginRequest) -> WeightState:
        return await self._weights("POST", "begin", request, request.bucket_timeout_s)

    async def commit(self, request: CommitRequest) -> WeightState:
        return await self._weights("POST", "commit", request, request.deadline_s)

    async def abort(self, request: AbortRequest, *, timeout_s: float = 30.0) -> WeightState:
        return await self._weights("POST", "abort", request, timeout_s)

    async def _weights(self, method: str, call: str, body: Request, deadline_s: float) -> WeightState:
        return await self._call(method, f"/v1/weights/{call}", body, WeightState, deadline_s + SLACK_S)
