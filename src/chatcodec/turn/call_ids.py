"""Ids that hold their function's name: `functions.NAME:INDEX` (Moonshot's guide to tool calls of Kimi K2)."""

from __future__ import annotations

import re

_WRITTEN = re.compile(r"functions\.(.+):[0-9]+", re.DOTALL)
_READ = re.compile(r"(?:functions\.)?(.+?)(?::[0-9]+)?", re.DOTALL)


def write(name: str, index: int) -> str:
    return f"functions.{name}:{index}"


def is_written(identity: str, name: str | None = None) -> bool:
    """Whether an id is written so, for `name` where one is given."""
    match = _WRITTEN.fullmatch(identity)
    return match is not None and name in (None, match[1])


def read(identity: str) -> str | None:
    """The name in an id that a model wrote, which may leave out what stands around it; None where there is none."""
    match = _READ.fullmatch(identity)
    return match[1] if match else None
