"""What stands in front of the routes: the token, the size of a body, the number of requests at once.

Plain ASGI, so that a request is refused before its body has been read.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grpo_proto.api_token import token_is

from .adapters.peers import ADAPTERS
from .metrics import Metrics
from .refusal import Refusal

OPEN_ROUTES = frozenset({"/livez", "/readyz", "/info", "/metrics"})
COUNTED_ROUTES = (
    OPEN_ROUTES | {"/v1/score", "/v1/rewards", "/openapi.json", "/seed_session"} | {peer.path for peer in ADAPTERS}
)


def response_of(refusal: Refusal) -> Response:
    return Response(
        refusal.body.model_dump_json(),
        status_code=refusal.status,
        headers=refusal.headers,
        media_type="application/json",
    )


class Guard:
    """Checks the token of every request that is not for an open route, and counts the answers."""

    def __init__(self, app: ASGIApp, *, token: str | None, metrics: Metrics):
        self._app, self._metrics = app, metrics
        self._token = token.encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        route = scope["path"] if scope["path"] in COUNTED_ROUTES else "other"

        async def counting_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests.labels(route, message["status"]).inc()
            await send(message)

        if scope["path"] in OPEN_ROUTES or self._token is None or _has_token(self._token, scope):
            await self._app(scope, receive, counting_send)
            return
        refusal = Refusal(
            401,
            "unauthorized",
            "the token is missing or wrong",
            hint="send Authorization: Bearer $GRPO_API_TOKEN",
            headers={"WWW-Authenticate": _wanted(scope["path"]), "Connection": "close"},
        )
        await response_of(refusal)(scope, receive, counting_send)


def _wanted(path: str) -> str:
    """A browser that opens the page asks its user for a name and a password; the token is the password."""
    return 'Basic realm="grpo-reward: any name, the token as password"' if path.startswith("/docs") else "Bearer"


def _has_token(token: bytes, scope: Scope) -> bool:
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    return len(given) == 1 and token_is(token, given[0])


LARGE_BYTES, BREATH_S = 2**20, 0.01
"""A body from this size on is parsed alone: a few of them one after the other would be seconds without an answer to a
probe. After each there is this long for others."""
PATIENCE_S, SLOW_BYTES_PER_S = 1.0, 256 * 1024
"""A body that is on its way for longer, and comes slower, makes room when all places for bodies are taken."""
LARGEST_BODIES = 4
"""How many bodies of the greatest size the server holds at once: a parsed body takes many times its bytes."""


class Admission:
    """How many requests, and how many bytes of their bodies, the server holds at once.

    A request takes one of `max_requests` places when its body is there. On their way are as many bodies at most: a
    client that is slow, or has stopped, does not keep others from being scored.
    """

    def __init__(self, *, max_requests: int, max_body_bytes: int, body_timeout_s: float):
        self.max_body_bytes, self.body_timeout_s = max_body_bytes, body_timeout_s
        self._max_requests = max_requests
        self._requests = self._held_bytes = 0
        self._arriving: dict[Place, None] = {}
        self._turn = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def turn_to_parse(self, num_bytes: int) -> AsyncIterator[None]:
        """Waits for: the large bodies before this one. Unblocked by: each of them, when it is parsed."""
        if num_bytes < LARGE_BYTES:
            yield
            return
        async with self._turn:
            try:
                yield
            finally:
                await asyncio.sleep(BREATH_S)

    @contextlib.contextmanager
    def place(self) -> Iterator["Place"]:
        """For the time of one request. Raises Refusal 429 when all places are taken, before a body is read."""
        self._check_places()
        place = Place(self)
        try:
            yield place
        finally:
            self._arriving.pop(place, None)
            self._requests -= place.taken
            self._held_bytes -= place.held_bytes

    def _check_places(self) -> None:
        if self._requests >= self._max_requests:
            raise _busy(f"{self._requests} requests are being scored, as many as this server takes at once")

    def begin_body(self, place: "Place") -> None:
        """Raises Refusal 429 when too many bodies are on their way, and none of them is slow."""
        if len(self._arriving) >= self._max_requests:
            now_s = asyncio.get_running_loop().time()
            slow = next((other for other in self._arriving if other.is_slow(now_s)), None)
            if slow is None:
                raise _busy(f"{len(self._arriving)} bodies are on their way, as many as this server takes at once")
            slow.make_room()
            del self._arriving[slow]
        self._arriving[place] = None

    def end_body(self, place: "Place") -> None:
        """Raises Refusal 429 when others have taken all places meanwhile."""
        self._arriving.pop(place, None)
        self._check_places()
        self._requests += 1
        place.taken = True

    def hold(self, num_bytes: int) -> None:
        """Raises Refusal 429 when the bodies of all requests together would be too much."""
        if self._held_bytes + num_bytes > LARGEST_BODIES * self.max_body_bytes:
            raise _busy(
                f"the requests being scored have {self._held_bytes} bytes, as many as this server takes at once"
            )
        self._held_bytes += num_bytes


class Place:
    """One request's share of what the server takes at once."""

    def __init__(self, admission: Admission):
        self._admission = admission
        self.held_bytes = 0
        self.taken = False
        """Whether it counts among those being scored."""
        self._began_s = 0.0
        self._limit: asyncio.Timeout | None = None

    def is_slow(self, now_s: float) -> bool:
        age_s = now_s - self._began_s
        return age_s >= PATIENCE_S and self.held_bytes < SLOW_BYTES_PER_S * age_s

    def make_room(self) -> None:
        """The body is given up, as one that is late."""
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def read_json(self, headers: Callable[[str], str | None], receive: Callable[[], Awaitable[Message]]) -> bytes:
        """The body. Raises Refusal: 415 for another content type, 413 as soon as it is known, 408 when it dawdles,
        429 when there is no place for it.
        """
        content_type = (headers("content-type") or "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            got = content_type or "none"
            raise Refusal(
                415,
                "wrong_content_type",
                f"the content type must be application/json, not {got}",
                hint="curl: -H 'Content-Type: application/json'",
                headers={"Connection": "close"},
            )
        length = headers("content-length")
        if length is not None and length.isdigit() and int(length) > self._admission.max_body_bytes:
            raise self._too_large(f"{int(length)} bytes")
        self._began_s = asyncio.get_running_loop().time()
        self._admission.begin_body(self)
        try:
            async with asyncio.timeout(self._admission.body_timeout_s) as self._limit:
                body = await self._receive(receive)
        except TimeoutError:
            waited_s = asyncio.get_running_loop().time() - self._began_s
            raise Refusal(
                408,
                "slow_body",
                f"the body had not come within {min(waited_s, self._admission.body_timeout_s):.3g} s",
                retryable=True,
                headers={"Connection": "close"},
            ) from None
        self._admission.end_body(self)
        return body

    async def _receive(self, receive: Callable[[], Awaitable[Message]]) -> bytes:
        parts = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            if len(parts) + len(part) > self._admission.max_body_bytes:
                raise self._too_large("more")
            self._admission.hold(len(part))
            self.held_bytes += len(part)
            parts += part
            if not message.get("more_body", False):
                return bytes(parts)

    def _too_large(self, size: str) -> Refusal:
        return Refusal(
            413,
            "body_too_large",
            f"the body has {size}; the limit is {self._admission.max_body_bytes} bytes",
            hint="send several requests, or start the server with a larger --max-body-mib",
            headers={"Connection": "close"},
        )


def _busy(message: str) -> Refusal:
    return Refusal(
        429,
        "busy",
        message,
        hint="wait, or start more replicas",
        retryable=True,
        headers={"Retry-After": "1", "Connection": "close"},
    )


class ClientGone(Exception):  # noqa: N818
    """Nobody waits for the answer any more."""
