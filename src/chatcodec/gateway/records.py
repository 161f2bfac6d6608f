"""What is told of each request: one line of JSON in the log, and the counts of the metrics."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.requests import Request

from .errors import ApiError
from .metrics import Metrics
from .requests import ChatRequest
from .responses import Answer

LEFT = 499
"""The status of a request whose client left before its answer was over; nobody receives it."""
LONGEST_PATH = 200
LONGEST_USER = 128
"""Characters that are logged of what the client says of its user."""
PROBES = frozenset(("/health", "/metrics"))
LOGGER = logging.getLogger("chatcodec.gateway")


@dataclass(slots=True)
class Record:
    """What is known of a request while it is worked on."""

    id: str
    method: str
    route: str
    path: str
    client: str | None
    begun: float = field(default_factory=time.perf_counter)
    status: int | None = None
    request: ChatRequest | None = None
    answer: Answer | None = None
    error: ApiError | None = None

    def started(self, status: int) -> None:
        self.status = status

    def left(self) -> None:
        self.status = LEFT

    @property
    def streams(self) -> bool:
        return bool(self.request and self.request.stream)


class Records:
    """Writes down each request when it is over; with `log_messages` also what was said in it."""

    def __init__(self, metrics: Metrics, *, log_messages: bool = False) -> None:
        self._metrics = metrics
        self._log_messages = log_messages
        self.running = 0
        self.worked_on = 0

    @contextmanager
    def record(self, request: Request, route: str) -> Iterator[Record]:
        client = f"{request.client.host}:{request.client.port}" if request.client else None
        record = Record(_id(request), request.method, route, request.url.path[:LONGEST_PATH], client)
        self.running += 1
        try:
            yield record
        finally:
            self.running -= 1
            self._count(record)
            self._write(record)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Counts a request among those that are bounded."""
        self.worked_on += 1
        try:
            yield
        finally:
            self.worked_on -= 1

    def crashed(self, record: Record, failure: Exception) -> None:
        """An error of the server's own."""
        LOGGER.error("request %s failed", record.id, exc_info=failure)

    def _count(self, record: Record) -> None:
        metrics, answer = self._metrics, record.answer
        metrics.requests.labels(record.route, str(record.status)).inc()
        metrics.seconds.labels(record.route).observe(time.perf_counter() - record.begun)
        if record.error is not None:
            metrics.errors.labels(record.error.code or record.error.type).inc()
        if answer is None:
            return
        if answer.first is not None:
            metrics.first.observe(answer.first - record.begun)
        metrics.prompt_tokens.inc(answer.prompt_tokens)
        for choice in answer.choices:
            metrics.completion_tokens.inc(choice.tokens)
            metrics.finished.labels(choice.finish_reason or "none").inc()
            for call in choice.attempts:
                metrics.calls.labels(call.status).inc()

    def _write(self, record: Record) -> None:
        # A probe that finds all well is not worth a line.
        level = logging.DEBUG if record.route in PROBES and record.status == 200 else logging.INFO
        if LOGGER.isEnabledFor(level):
            LOGGER.log(level, "request", extra={"fields": self._fields(record)})

    def _fields(self, record: Record) -> dict[str, Any]:
        now = time.perf_counter()
        fields: dict[str, Any] = {
            "id": record.id,
            "method": record.method,
            "path": record.path,
            "status": record.status,
            "client": record.client,
            "seconds": round(now - record.begun, 4),
        }
        if record.request is not None:
            fields |= {"stream": record.streams, "user": (record.request.user or "")[:LONGEST_USER] or None}
        if record.answer is not None:
            usage, first = record.answer.usage, record.answer.first
            fields |= {
                "completion": record.answer.id,
                "first_token_seconds": None if first is None else round(first - record.begun, 4),
                "prompt_tokens": usage["prompt_tokens"],
                "completion_tokens": usage["completion_tokens"],
                "finish_reasons": [choice.finish_reason for choice in record.answer.choices],
                "tool_calls": [call.status for choice in record.answer.choices for call in choice.attempts],
            }
        if record.error is not None:
            # Of the message, which may name what the client sent, only what kind of error it is.
            fields |= {
                "error": record.error.code or record.error.type,
                "param": (record.error.param or "").partition(".")[0] or None,
            }
            if self._log_messages or record.error.status >= 500:
                fields["message"] = record.error.message
        if self._log_messages and record.request is not None:
            fields["messages"] = record.request.messages
            if record.answer is not None:
                fields["answers"] = [choice.message for choice in record.answer.choices]
        return fields


def _id(request: Request) -> str:
    """The client's own id of its request, or a new one."""
    given = request.headers.get("x-request-id", "")
    return given if 0 < len(given) <= 128 and given.isascii() and given.isprintable() else uuid.uuid4().hex


class JsonLines(logging.Formatter):
    """Each record of a log as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()
