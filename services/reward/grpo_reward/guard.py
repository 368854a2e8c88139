"""What stands in front of the routes: the token, the size of a body, the number of requests at once.

Plain ASGI, so that a request is refused before its body has been read.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grpo_proto.api_token import token_refusal
from grpo_proto.server.listening import most_files
from grpo_proto.server.loopback_names import name_refusal
from grpo_proto.server.replies import refusal_reply

from .adapters.peers import ADAPTERS
from .metrics import Metrics
from .refusal import Refusal, busy

OPEN_ROUTES = frozenset({"/livez", "/readyz", "/info", "/metrics"})
COUNTED_ROUTES = (
    OPEN_ROUTES | {"/v1/score", "/v1/rewards", "/openapi.json", "/seed_session"} | {peer.path for peer in ADAPTERS}
)


class Guard:
    """Checks the token of every request that is not for an open route, and counts the answers.

    Without tokens it checks that a request is for a loopback name.
    """

    def __init__(self, app: ASGIApp, *, tokens: Sequence[str], metrics: Metrics):
        self._app, self._metrics, self._tokens = app, metrics, tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        route = scope["path"] if scope["path"] in COUNTED_ROUTES else "other"

        async def counting_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests.labels(route, message["status"]).inc()
            await send(message)

        refusal = None
        if not self._tokens:
            refusal = name_refusal(scope["headers"])
        elif scope["path"] not in OPEN_ROUTES:
            refusal = token_refusal(self._tokens, scope["headers"], challenge=_challenge(scope["path"]))
        app = self._app if refusal is None else refusal_reply(refusal)
        await app(scope, receive, counting_send)


def _challenge(path: str) -> str:
    """A browser that opens the page asks its user for a name and a password; the token is the password."""
    return 'Basic realm="grpo-reward: any name, the token as password"' if path.startswith("/docs") else "Bearer"


LARGE_BYTES, BREATH_S = 64 * 1024, 0.002
"""A body from this size on is parsed alone: one of 200 KB can take 20 ms, and forty of them one after the other would
be a second without an answer to a probe. After each there is as long for others as it took, and at least this."""
PATIENCE_S, SLOW_BYTES_PER_S = 1.0, 256 * 1024
"""A body of which nothing comes for so long, or that comes slower, makes room when another needs it."""
BODIES_PER_REQUEST = 4
"""How many bodies may be on their way for each request that may be scored."""
FILES_PER_BODY = 8
"""How many files the server may open for each of them: others need some, too."""
SMALL_BYTES = LARGE_BYTES
"""Up to here a body is taken also when large ones have used up the bytes: their number is bounded as well."""
LARGEST_BODIES = 4
"""How many bodies of the greatest size the server holds at once: a parsed body takes many times its bytes."""
MEDIUM_SHARE = 16
"""Bodies up to this part of the greatest size find the place of one more: else four large requests that are scored for
minutes would keep out those that most clients send."""


class Admission:
    """How many requests, and how many bytes of their bodies, the server holds at once.

    A request takes one of `max_requests` places when its body is there. On their way may be BODIES_PER_REQUEST times as
    many: a client that is slow, or has stopped, does not keep others from being scored, neither by its place nor by its
    bytes. No refusal closes the connection: with bytes unread in it the client would see a reset and not the refusal.
    """

    def __init__(self, *, max_requests: int, max_body_bytes: int, body_timeout_s: float):
        self.max_body_bytes, self.body_timeout_s = max_body_bytes, body_timeout_s
        self._max_requests = max_requests
        self._max_bodies = max(1, min(BODIES_PER_REQUEST * max_requests, most_files() // FILES_PER_BODY))
        self._requests = self._held_bytes = 0
        self._arriving: dict[Place, None] = {}
        self._turn = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def turn_to_parse(self, num_bytes: int) -> AsyncIterator[None]:
        """Waits for: the large bodies before this one. Unblocked by: each of them, when it is parsed."""
        if num_bytes < LARGE_BYTES:
            yield
            return
        loop = asyncio.get_running_loop()
        async with self._turn:
            started_s = loop.time()
            try:
                yield
            finally:
                await asyncio.sleep(max(BREATH_S, loop.time() - started_s))

    @contextlib.contextmanager
    def place(self) -> Iterator["Place"]:
        """A place for the time of one request. Raises Refusal 429 when all are taken, before a body is read."""
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
            raise busy(f"{self._requests} requests are being scored, as many as this server takes at once")

    def begin_body(self, place: "Place") -> None:
        """When too many bodies are on their way, the one of which nothing has come for longest makes room.

        Slow or not: a body that was begun a moment ago may be one of hundreds that somebody begins every second.
        """
        if len(self._arriving) >= self._max_bodies:
            self._give_up(min(self._arriving, key=lambda other: other.good_until_s))
        self._arriving[place] = None

    def _give_up_slowest(self) -> bool:
        """Give up the slow body that holds most; False when none is slow."""
        now_s = asyncio.get_running_loop().time()
        slow = [place for place in self._arriving if place.is_slow(now_s)]
        if not slow:
            return False
        self._give_up(max(slow, key=lambda place: place.held_bytes))
        return True

    def _give_up(self, place: "Place") -> None:
        del self._arriving[place]
        self._held_bytes -= place.give_up()

    def end_body(self, place: "Place") -> None:
        """Raises Refusal 429 when others have taken all places meanwhile."""
        self._arriving.pop(place, None)
        self._check_places()
        self._requests += 1
        place.taken = True

    def hold(self, place: "Place", num_bytes: int) -> None:
        """Raises Refusal 429 when all bodies together would be too much."""
        is_medium = MEDIUM_SHARE * (place.held_bytes + num_bytes) <= self.max_body_bytes
        limit = (LARGEST_BODIES + is_medium) * self.max_body_bytes
        if place.held_bytes + num_bytes > SMALL_BYTES:
            while self._held_bytes + num_bytes > limit:
                if not self._give_up_slowest():
                    raise busy(
                        f"bodies on their way and requests being scored have {self._held_bytes} bytes, as many as this"
                        " server takes at once"
                    )
        self._held_bytes += num_bytes
        place.held_bytes += num_bytes


class Place:
    """One request's share of what the server takes at once."""

    def __init__(self, admission: Admission):
        self._admission = admission
        self.held_bytes = 0
        self.taken = False
        """Whether it counts among those being scored."""
        self.good_until_s = 0.0
        """When it will be slow, unless more comes."""
        self._given_up = False
        self._limit: asyncio.Timeout | None = None

    def is_slow(self, now_s: float) -> bool:
        return now_s > self.good_until_s

    def _has_come(self, num_bytes: int) -> None:
        """However many come at once, they excuse no longer stall than PATIENCE_S."""
        now_s = asyncio.get_running_loop().time()
        good_until_s = max(self.good_until_s, now_s) + num_bytes / SLOW_BYTES_PER_S
        self.good_until_s = min(good_until_s, now_s + PATIENCE_S)

    def give_up(self) -> int:
        """The bytes that are free again. Its client is told that the body was slow."""
        self._given_up, held_bytes, self.held_bytes = True, self.held_bytes, 0
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())
        return held_bytes

    async def read_json(self, headers: Callable[[str], str | None], receive: Callable[[], Awaitable[Message]]) -> bytes:
        """The body. Raises Refusal: 415 for another content type or encoding, 413 as soon as it is known, 408 when it
        dawdles, 429 when there is no place for it.
        """
        content_type = (headers("content-type") or "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            got = content_type or "none"
            raise Refusal(
                415,
                "wrong_content_type",
                f"the content type must be application/json, not {got}",
                hint="curl: -H 'Content-Type: application/json'",
            )
        encoding = (headers("content-encoding") or "").strip().lower()
        if encoding not in ("", "identity"):
            raise Refusal(
                415, "wrong_content_encoding", f"the body is encoded as {encoding}", hint="send it as plain JSON"
            )
        length = headers("content-length")
        if length is not None and length.isdigit() and int(length) > self._admission.max_body_bytes:
            raise self._too_large(f"{int(length)} bytes")
        self.good_until_s = asyncio.get_running_loop().time() + PATIENCE_S
        self._admission.begin_body(self)
        try:
            async with asyncio.timeout(self._admission.body_timeout_s) as self._limit:
                body = await self._receive(receive)
        except TimeoutError:
            late = f"the body had not come within {self._admission.body_timeout_s:g} s"
            slow = "the body came too slowly for a server that is full"
            raise Refusal(
                408,
                "slow_body",
                slow if self._given_up else late,
                hint="send it at once, or in smaller requests; --body-timeout-s is the longest that a server waits",
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
            if self._given_up:
                raise TimeoutError
            part = message.get("body", b"")
            if len(parts) + len(part) > self._admission.max_body_bytes:
                raise self._too_large("more")
            self._has_come(len(part))
            self._admission.hold(self, len(part))
            parts += part
            if not message.get("more_body", False):
                return bytes(parts)

    def _too_large(self, size: str) -> Refusal:
        return Refusal(
            413,
            "body_too_large",
            f"the body has {size}; the limit is {self._admission.max_body_bytes} bytes",
            hint="send several requests, or start the server with a larger --max-body-mib",
        )


class ClientGone(Exception):  # noqa: N818
    """Nobody waits for the answer any more."""
