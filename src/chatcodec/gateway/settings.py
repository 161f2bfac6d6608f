"""What a server is told when it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """`size` is in bytes; `depth` counts lists and objects in one another; `values` counts list items and members."""

    size: int = 8 * 2**20
    depth: int = 32
    values: int = 100_000


EMBEDDED = "embedded"
"""In place of an engine's URL: the engine that needs no server."""
SPARE = 64
"""Requests beside those that the engine answers and those that wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Times are in seconds. `models` are the names that the model answers to, the first its own."""

    models: tuple[str, ...]
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Template variables of every prompt, where the request gives no other."""
    special_in_content: str = "text"
    """As `Codec.encode` has it. An engine that takes no ids cannot be sent "text": it is "error" there."""
    api_keys: tuple[str, ...] = ()
    hosts: tuple[str, ...] | None = None
    """The names by which clients without a key may call the server, beside its addresses; None: any."""
    limits: BodyLimits = field(default_factory=BodyLimits)
    max_messages: int = 10_000
    max_tools: int = 1_024
    max_n: int = 16
    max_tokens: int | None = None
    """The longest answer: what counts where a request asks for more, or does not say."""
    concurrency: int = 64
    """Answers that the engine writes at once; a request for `n` of them counts as `n`."""
    queue: int = 512
    queue_timeout: float = 60.0
    body_timeout: float = 30.0
    timeout: float = 600.0
    """A whole request."""
    stall: float = 60.0
    """How long a client may read nothing of what is sent."""
    keep_alive: float = 15.0
    """How long a stream may be silent before a comment is sent."""
    drain: float = 60.0
    """How long running requests may go on when the server is told to stop."""
    log_messages: bool = False

    @property
    def most_requests(self) -> int:
        """Requests that are worked on at once, those included that wait, or whose body is still coming."""
        return self.concurrency + self.queue + SPARE
