"""OpenTelemetry: what a request that scores was, below the spans of those who asked.

A sample may name a span of its client (`traceparent`), as the trainer does for every group; the others belong to the
header of that name. Each of these spans gets one of ours below it. Without `--otlp-endpoint` nothing is recorded, and
the libraries need not be installed.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from grpo_proto import ScoreRequest, ScoreResponse
from grpo_proto.tracing import send_the_rest, tracer_provider

from .executors.base import ExecutorUnavailable
from .faults import shown

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span


MAX_SPANS = 128
"""Most spans of one request: they are made in the event loop, in some 0.1 ms each."""

MAX_NUMBER = 2**63 - 1
"""Largest integer that an attribute of a span can hold."""


class Answer:
    """What came of a request; `response` stays None when it was refused or given up."""

    response: ScoreResponse | None = None


class Tracing:
    """Spans of requests. Raises ExecutorUnavailable when the libraries for an `endpoint` are not installed."""

    def __init__(self, endpoint: str | None):
        self._provider: TracerProvider | None = None
        if endpoint is None:
            return
        try:
            self._provider = tracer_provider(endpoint, service="grpo-reward")
        except ImportError as error:
            hint = "pip install 'grpo-reward[tracing]'"
            raise ExecutorUnavailable(f"--otlp-endpoint needs {error.name}, which is not installed: {hint}") from error

    @contextmanager
    def request(self, message: ScoreRequest, *, route: str, header: str | None) -> Iterator[Answer]:
        """A span around the scoring of `message`. `header`: the request's own traceparent."""
        answer = Answer()
        if self._provider is None:
            yield answer
            return
        started_ns, failure = time.time_ns(), None
        try:
            yield answer
        except BaseException as error:
            failure = str(error) or type(error).__name__
            raise
        finally:
            for parent, positions in _parents(message, header).items():
                span = self._start(f"POST {route}", parent, started_ns)
                span.set_attributes(_told(message, positions, answer.response))
                if failure is not None:
                    _fail(span, failure)
                span.end()

    def _start(self, name: str, parent: str | None, started_ns: int) -> "Span":
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        if self._provider is None:
            raise RuntimeError("there are no spans without an endpoint")
        # What is no traceparent makes a root, as W3C Trace Context wants it.
        context = TraceContextTextMapPropagator().extract({"traceparent": parent} if parent else {})
        tracer = self._provider.get_tracer("grpo_reward")
        return tracer.start_span(name, context=context, kind=SpanKind.SERVER, start_time=started_ns)

    def close(self) -> None:
        if self._provider is not None:
            send_the_rest(self._provider)


def _parents(message: ScoreRequest, header: str | None) -> dict[str | None, list[int]]:
    """The spans above ours → the positions of their samples. A request with too many of them goes to the header's."""
    parents: dict[str | None, list[int]] = {}
    for position, sample in enumerate(message.samples):
        parents.setdefault(sample.traceparent or header, []).append(position)
    return parents if len(parents) <= MAX_SPANS else {header: list(range(len(message.samples)))}


def _told(
    message: ScoreRequest, positions: list[int], response: ScoreResponse | None
) -> dict[str, int | str | list[str]]:
    told: dict[str, int | str | list[str]] = {
        "grpo.rewards": [shown(spec.name) for spec in message.rewards],
        "grpo.samples": len(positions),
    }
    if message.step is not None:
        # The exporter would leave out a longer number, with a stack trace in the log for each span.
        told["grpo.step"] = message.step if message.step <= MAX_NUMBER else shown(str(message.step))
    if response is not None:
        results = [response.results[position] for position in positions]
        statuses = Counter(score.status for result in results for score in result.rewards.values())
        told |= {f"grpo.scores.{status}": count for status, count in statuses.items()}
    return told


def _fail(span: "Span", reason: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, reason[:1000]))
