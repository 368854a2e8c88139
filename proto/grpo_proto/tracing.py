"""Export spans to an OpenTelemetry receiver over HTTP. The libraries are imported on first use."""

import logging
import os
import secrets
import threading
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from .fewer_repeats import FewerRepeats

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

log = logging.getLogger("grpo_proto.tracing")
FLUSH_TIMEOUT_S = 5.0
EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
"""Logs at every try, every few seconds, for as long as the receiver is away."""
QUEUE = "opentelemetry.sdk._shared_internal"
"""Logs once in twenty seconds that the queue is full."""
QUEUE_VARIABLE, MAX_WAITING_SPANS = "OTEL_BSP_MAX_QUEUE_SIZE", 16_384
"""All groups of a batch end at once, each with two spans; the SDK's own default is 2048."""
_SELDOM = FewerRepeats(every_s=600.0, levels=(logging.WARNING, logging.ERROR))

TraceParent = Annotated[str, Field(pattern=r"^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")]
"""The parent of other spans, as W3C Trace Context writes it."""


def tracer_provider(endpoint: str, *, service: str) -> "TracerProvider":
    """A provider that sends spans in the background.

    Headers, timeouts and sampling come from OpenTelemetry's own variables (OTEL_…). The provider is not made global:
    other libraries in the process would begin to trace as well.

    Args:
        endpoint: base URL of the receiver, such as http://otel-collector:4318.
        service: the `service.name` of the spans, unless OTEL_SERVICE_NAME is set.

    Raises ImportError when the libraries are not installed.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.id_generator import IdGenerator

    class OwnIds(IdGenerator):
        """Draw ids from the system: the SDK draws them from `random`, and runs with equal seeds would share traces."""

        def generate_trace_id(self) -> int:
            return secrets.randbits(128) or 1

        def generate_span_id(self) -> int:
            return secrets.randbits(64) or 1

        def is_trace_id_random(self) -> bool:
            """W3C's flag: a sampler may decide by the id."""
            return True

    for name in (EXPORTER, QUEUE):
        logging.getLogger(name).addFilter(_SELDOM)
    # Do not shut down at exit: that waits for the receiver without a timeout.
    provider = TracerProvider(
        resource=Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME") or service}),
        shutdown_on_exit=False,
        id_generator=OwnIds(),
    )
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
    max_queue_size = None if QUEUE_VARIABLE in os.environ else MAX_WAITING_SPANS
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=max_queue_size))
    return provider


def send_the_rest(provider: "TracerProvider") -> None:
    """Send the spans still queued, before the process ends; give up after FLUSH_TIMEOUT_S.

    The SDK's own timeouts do not hold: its flush sends the whole queue, however long the receiver takes for each part.
    """
    sender = threading.Thread(target=provider.shutdown, name="last-spans", daemon=True)
    sender.start()
    sender.join(FLUSH_TIMEOUT_S)
    if sender.is_alive():
        log.warning("the receiver did not take the last spans within %g s: they are lost", FLUSH_TIMEOUT_S)
