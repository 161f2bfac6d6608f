"""What a server counts, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)


class Metrics:
    """One server's counts; several servers in a process do not share them."""

    kind = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.requests = Counter(
            "chatcodec_requests", "Requests that are over, by route and status.", ("route", "status"), registry=registry
        )
        self.seconds = Histogram(
            "chatcodec_request_seconds", "How long requests took.", ("route",), buckets=SECONDS, registry=registry
        )
        self.first = Histogram(
            "chatcodec_time_to_first_token_seconds",
            "From a chat's request to the first that is sent of its answer.",
            buckets=SECONDS,
            registry=registry,
        )
        self.prompt_tokens = Counter("chatcodec_prompt_tokens", "Tokens of prompts.", registry=registry)
        self.completion_tokens = Counter("chatcodec_completion_tokens", "Tokens of answers.", registry=registry)
        self.finished = Counter(
            "chatcodec_finished", "Answers that are over, by finish_reason.", ("finish_reason",), registry=registry
        )
        self.calls = Counter(
            "chatcodec_tool_calls", "Attempts at a tool call, by status.", ("status",), registry=registry
        )
        self.errors = Counter(
            "chatcodec_errors", "Errors that clients were told of, by code.", ("code",), registry=registry
        )

    def watch(self, name: str, what: str, read: Callable[[], float]) -> None:
        """A gauge that is read when it is asked for."""
        Gauge(name, what, registry=self._registry).set_function(read)

    def text(self) -> bytes:
        return generate_latest(self._registry)
