"""OpenTelemetry: one trace for each group, from its prompt to its gradient.

The root span `group` has the consecutive children `sample`, `score`, `wait` and `train`. The prompt carries the span
context of `sample` to the rollout server, where vLLM adds its own span when started with `--otlp-traces-endpoint`.
Without an endpoint nothing is recorded, and the libraries need not be installed.
"""

import time
from typing import TYPE_CHECKING

from grpo_proto.tracing import send_the_rest, tracer_provider

from ..errors import UsageError
from ..group_trace import NO_TRACE, Attribute, GroupTrace

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer


class Tracing:
    """Make traces and send them in the background. `close` sends the remaining traces.

    Args:
        endpoint: base URL of an OTLP receiver over HTTP, such as http://otel-collector:4318; None: no tracing.
            Headers, timeouts and sampling come from OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_HEADERS, …).
        run: the run's name.

    Raises UsageError when the libraries are not installed.
    """

    def __init__(self, endpoint: str | None, *, run: str):
        self._run = run
        self._provider: TracerProvider | None = None
        self._tracer: Tracer | None = None
        if endpoint is None:
            return
        try:
            self._provider = tracer_provider(endpoint, service="grpo-trainer")
        except ImportError as error:
            raise UsageError(
                f"logging.otlp_endpoint needs {error.name}, which is not installed",
                hint="pip install 'grpo-trainer[tracing]', or remove the setting",
            ) from error
        self._tracer = self._provider.get_tracer("grpo_trainer")

    def group(self, position: int) -> GroupTrace:
        """Start the trace of the group at `position`."""
        return NO_TRACE if self._tracer is None else _Recorded(self._tracer, self._run, position)

    def close(self) -> None:
        if self._provider is not None:
            send_the_rest(self._provider)


class _Recorded:
    """A `GroupTrace` that records and sends spans."""

    def __init__(self, tracer: "Tracer", run: str, position: int):
        from opentelemetry.trace import set_span_in_context

        self._tracer = tracer
        # The times of a trace are those of one clock that is never set back: stages follow each other.
        self._wall_ns, self._monotonic_ns = time.time_ns(), time.monotonic_ns()
        attributes: dict[str, Attribute] = {"grpo.run": run, "grpo.group": position}
        self._root: Span = tracer.start_span("group", attributes=attributes, start_time=self._wall_ns)
        self._inside = set_span_in_context(self._root)
        self._stage: Span | None = None

    @property
    def trace_id(self) -> str:
        return format(self._root.get_span_context().trace_id, "032x")

    @property
    def traceparent(self) -> str:
        context = (self._stage or self._root).get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def _now_ns(self) -> int:
        return self._wall_ns + time.monotonic_ns() - self._monotonic_ns

    def enter(self, stage: str) -> None:
        now_ns = self._now_ns()
        if self._stage is not None:
            self._stage.end(now_ns)
        self._stage = self._tracer.start_span(stage, context=self._inside, start_time=now_ns)

    def end(self, outcome: str, *, failed: bool = False, **attributes: Attribute) -> None:
        from opentelemetry.trace import StatusCode

        if not self._root.is_recording():  # it has ended, or OpenTelemetry does not sample it
            return
        now_ns = self._now_ns()
        if self._stage is not None:
            self._stage.end(now_ns)
            self._stage = None
        self._root.set_attribute("grpo.outcome", outcome)
        if failed:
            self._root.set_status(StatusCode.ERROR, outcome)
        for key, value in attributes.items():
            self._root.set_attribute(f"grpo.{key}", value)
        self._root.end(now_ns)
