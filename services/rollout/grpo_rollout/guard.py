"""The ASGI middleware in front of every route, vLLM's too: check the token, the state of the weights, and the body's
size."""

import logging
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Protocol

from grpo_proto.api_token import token_refusal
from grpo_proto.server.loopback_names import name_refusal
from grpo_proto.server.refusal import Refusal
from grpo_proto.server.replies import refusal_reply

from . import weight_state
from .weight_state import Weights

logger = logging.getLogger("vllm.grpo_rollout.guard")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

PUBLIC = frozenset({"/livez", "/readyz", "/info", "/metrics"})
# The routes that answer while no weights are served. Any other route might sample: a route that a new vLLM adds stays
# closed until it is listed here.
WITHOUT_WEIGHTS = PUBLIC | {
    "/health", "/ping", "/version", "/load", "/docs", "/redoc", "/openapi.json", "/v1/models",
    "/tokenize", "/detokenize", "/tokenizer_info",
    "/v1/weights", "/v1/weights/session", "/v1/weights/begin", "/v1/weights/commit", "/v1/weights/abort",
    "/v1/weights/renew",
}  # fmt: skip
# The routes of one session check its keys, and hold its requests while no weights are served. Opening one does not.
OPEN_SESSION, SESSION_ROUTES = "/v1/sessions", ("/v1/sessions/", "/sessions/")
CLOSED = frozenset({"/scale_elastic_ep", "/is_scaling_elastic_ep"})
"""Routes of vLLM for servers of several data-parallel engines, which this one refuses to be."""
RETRY_AFTER_S = 1.0
MAX_BODY_BYTES = 256 * 2**20


class HasWeights(Protocol):
    weights: Weights


class BodyLimit:
    """A request whose body has at most `MAX_BODY_BYTES`; any longer one is answered with a 413, whatever the
    application makes of the error that it gets in place of the rest.

    Raises Refusal for a declared length that is larger.
    """

    def __init__(self, headers: Sequence[tuple[bytes, bytes]], receive: Receive, send: Send):
        self._receive, self._send = receive, send
        self._num_bytes, self._has_answered = 0, False
        message = f"the body is larger than {MAX_BODY_BYTES} bytes"
        self._too_large = Refusal(413, "body_too_large", message, hint="send a smaller one")
        if int(dict(headers).get(b"content-length", 0)) > MAX_BODY_BYTES:
            raise self._too_large

    @property
    def _is_exceeded(self) -> bool:
        return self._num_bytes > MAX_BODY_BYTES and not self._has_answered

    async def receive(self) -> Message:
        part = await self._receive()
        self._num_bytes += len(part.get("body", b""))
        if self._is_exceeded:
            raise self._too_large
        return part

    async def send(self, message: Message) -> None:
        if not self._is_exceeded:
            self._has_answered = True
            await self._send(message)

    async def call(self, app: App, scope: MutableMapping[str, Any]) -> None:
        try:
            await app(scope, self.receive, self.send)
        except Exception:
            if not self._is_exceeded:
                raise
        if self._is_exceeded:
            await refusal_reply(self._too_large)(scope, self._receive, self._send)


def _route_path(scope: MutableMapping[str, Any]) -> str:
    """The path without vLLM's --root-path, under which every route is served, too."""
    root, path = scope.get("root_path", "").rstrip("/"), scope["path"].rstrip("/")
    return (path.removeprefix(root) if path == root or path.startswith(f"{root}/") else path) or "/"


class Guard:
    """Wraps the whole application.

    Args:
        app: the application.
        tokens: `Authorization: Bearer …` must carry one of these tokens. Empty: no token is required, and only
            requests for a loopback name are answered.
        pushes: returns the holder of the weight state, or None until the engine is up.
        max_waiting: how many requests may wait while weights are loading. vLLM's own queue has no bound.
    """

    def __init__(self, app: App, *, tokens: Sequence[str], pushes: Callable[[], HasWeights | None], max_waiting: int):
        self.app = app
        self.tokens = tokens
        self.pushes = pushes
        self.max_waiting = max_waiting
        self.num_waiting = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        path = _route_path(scope)
        try:
            self._check_token(scope, path)
            if path in CLOSED:
                raise Refusal(404, "not_found", f"{path} is for servers with --data-parallel-size above 1")
            request = BodyLimit(scope["headers"], receive, send)
            waits = self._check_weights(path)
        except Refusal as refused:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": refused.detail.type})
            else:
                await refusal_reply(refused)(scope, receive, send)
            return
        self.num_waiting += waits
        try:
            await request.call(self.app, scope)
        finally:
            self.num_waiting -= waits

    def _check_token(self, scope: MutableMapping[str, Any], path: str) -> None:
        """Raises Refusal: 401 for a missing or wrong token, 403 without tokens for a name other than a loopback one."""
        if not self.tokens:
            if (foreign := name_refusal(scope["headers"])) is not None:
                raise foreign
        elif path not in PUBLIC and not path.startswith(SESSION_ROUTES):
            refused = token_refusal(self.tokens, scope["headers"])
            if refused is not None:
                if any(name == b"authorization" for name, _ in scope["headers"]):
                    logger.warning("refused a request for %s: wrong token", path)
                raise refused

    def _check_weights(self, path: str) -> bool:
        """Return whether this request will wait for a commit. Raises Refusal: 503 no weights, 429 too many waiting."""
        if path in WITHOUT_WEIGHTS or path == OPEN_SESSION or path.startswith(SESSION_ROUTES):
            return False
        pushes = self.pushes()
        if pushes is None:
            raise Refusal.busy(503, "starting", "the engine is starting", RETRY_AFTER_S)
        if not pushes.weights.serves:
            raise weight_state.not_serving(pushes.weights)
        if pushes.weights.state != "loading":
            return False
        if self.num_waiting >= self.max_waiting:
            raise Refusal.busy(
                429, "too_many_waiting", f"{self.num_waiting} requests already wait for new weights", RETRY_AFTER_S
            )
        return True
