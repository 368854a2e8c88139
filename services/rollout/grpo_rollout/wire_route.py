"""Answer every error of our routes with the wire's error body, whatever raised it."""

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from grpo_proto.server.refusal import Refusal
from grpo_proto.server.replies import refusal_reply

from .engine import EngineDiedError

logger = logging.getLogger("vllm.grpo_rollout.wire_route")


class WireRoute(APIRoute):
    """FastAPI's route, with the wire's error bodies."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_wire_request(request: Request) -> Response:
            try:
                if self.body_field is not None:
                    check_content_type(request)
                return await handle(request)
            except Refusal as refused:
                return refusal_reply(refused)
            except RequestValidationError as error:
                return refusal_reply(_invalid(error))
            except EngineDiedError as error:
                return refusal_reply(error.refusal)
            except Exception as error:
                # FastAPI raises this of what its parser raises; a recursion of ours is an error of ours.
                if isinstance(error, HTTPException) and isinstance(error.__cause__, RecursionError):
                    return refusal_reply(Refusal(400, "malformed_json", "the body is nested too deeply"))
                if isinstance(error, HTTPException) and isinstance(error.__cause__, ValueError):
                    return refusal_reply(
                        Refusal(400, "malformed_json", f"the body is not JSON: {error.__cause__}"[:300])
                    )
                logger.exception("%s %s failed", request.method, request.url.path)
                return refusal_reply(Refusal(500, "internal", "internal error; see the server's log", retryable=True))

        return handle_wire_request


def check_content_type(request: Request) -> None:
    """Raises Refusal (415) for a body that is not declared as JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(
            415, "wrong_content_type", f"the content type is {kind or 'missing'}", hint="send application/json"
        )


def _invalid(error: RequestValidationError) -> Refusal:
    """Return 400 for a body that is not JSON, and 422 with place and reason for a value that cannot be used."""
    problems = error.errors()
    if any(problem["type"] == "json_invalid" for problem in problems):
        return Refusal(400, "malformed_json", f"the body is not JSON: {problems[0].get('ctx', {}).get('error', '')}")
    places = [
        f"{'.'.join(str(part) for part in problem['loc'] if part != 'body') or 'body'}: {problem['msg']}"
        for problem in problems
    ]
    more = f" and {len(places) - 5} more" if len(places) > 5 else ""
    kinds = {problem["type"] for problem in problems}
    kind = "unknown_field" if "extra_forbidden" in kinds else "invalid_value"
    return Refusal.invalid(kind, "; ".join(places[:5]) + more)
