"""Reads fields of an engine's JSON: what is not of the right shape is `EngineAnswerInvalid`, never a crash later."""

from __future__ import annotations

import json
import math
from typing import Any

from .engine import EngineAnswerInvalid

_LARGEST_COUNT = 1 << 53
_LARGEST_ID = 1 << 31


def parse(text: str | bytes) -> Any:
    """The JSON value."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise EngineAnswerInvalid("the engine's answer is not JSON") from None


def as_object(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(name, "an object")
    return value


def as_list(value: object, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(name, "a list")
    return value


def as_text(value: object, name: str) -> str:
    """A string that is Unicode: JSON can escape halves of characters, which nobody could send on."""
    if not isinstance(value, str):
        raise _wrong(name, "a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _wrong(name, "Unicode") from None
    return value


def as_count(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _LARGEST_COUNT:
        raise _wrong(name, "a count")
    return value


def optional_count(value: object, name: str) -> int | None:
    return None if value is None else as_count(value, name)


def as_id(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _LARGEST_ID:
        raise _wrong(name, "a token id")
    return value


def as_ids(value: object, name: str) -> tuple[int, ...]:
    return tuple(as_id(item, name) for item in as_list(value, name))


def as_logprob(value: object, name: str) -> float:
    """Minus infinity for null and all that is not finite, which servers use for impossible tokens."""
    if value is None:
        return -math.inf
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _wrong(name, "a number")
    try:
        number = float(value)
    except OverflowError:
        raise _wrong(name, "a number") from None
    return number if math.isfinite(number) else -math.inf


def as_bytes(value: object, name: str) -> bytes:
    """Bytes written as a list of numbers."""
    try:
        return bytes(as_list(value, name))
    except (TypeError, ValueError):
        raise _wrong(name, "a list of bytes") from None


def whole(text: str) -> bytes | None:
    """The bytes of a token's text, if it is told whole: a replacement character hides what it stands for."""
    return None if "\ufffd" in text else text.encode()


def _wrong(name: str, kind: str) -> EngineAnswerInvalid:
    return EngineAnswerInvalid(f"the engine's answer is of the wrong shape: {name} is not {kind}")
