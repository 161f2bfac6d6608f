"""What a server says when it fails → the `EngineError` that it means."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from .engine import (
    ContextExceeded,
    EngineBusy,
    EngineError,
    EngineRefused,
    EngineUnreachable,
)

MESSAGE_LIMIT = 500

_CONTEXT = re.compile(
    r"(?:context (?:length|size|window)|maximum allowed length|max_model_len)(?! exceeded)\D{0,40}?(\d{1,15})", re.I
)
_PROMPT = re.compile(
    r"(\d{1,15}) input tokens|input length \((\d{1,15})|the input \((\d{1,15}) tokens|request \((\d{1,15}) tokens"
    r"|(\d{1,15}) tokens from the input|(\d{1,15}) in the (?:messages|prompt)|resulted in (\d{1,15}) tokens"
    r"|prompt contains (?:at least )?(\d{1,15})",
    re.I,
)
_EXCEEDED_KINDS = ("exceed_context_size_error", "context_length_exceeded")

# Some servers repeat the request in their complaint; the prompt must not go further.
_ECHO = re.compile(r"""['"]?\binput(?:_value)?['"]?\s*[:=].*""", re.S)
_IDS = re.compile(r"\[\s*-?\d+(?:\s*,\s*-?\d+){3,}[^\]]*(?:\]|\Z)")


class NotFound(EngineError):
    """The server has no such route, or no such model."""


def failure(status: int | None, body: object, retry_after: float | None = None) -> EngineError:
    """The error that a status and a body mean.

    `body` is the JSON, or the text where it is none. Without a `status`, as within a stream, the body's code counts.
    """
    message, kind, fields = _said(body)
    if status is None:
        status = _code(fields, kind)
    exceeded = _context_exceeded(message, kind, fields)
    if exceeded is not None and status in (None, 400, 413, 422, 500):
        return exceeded
    said = _fit_to_pass_on(message)
    match status:
        case 400 | 413 | 422:
            return EngineRefused(said or "the engine refused the request")
        case 401 | 403:
            return EngineError(
                f"the engine does not take its API key (it answered {status}): give the right one (--engine-key)"
            )
        case 404:
            return NotFound(_with("the engine's URL or model is wrong (it answered 404)", said))
        case 405:
            return NotFound("the engine's URL is wrong (it answered 405)")
        case 429 | 503:
            return EngineBusy(_with("the engine is busy", said), retry_after)
        case 502 | 504:
            return EngineUnreachable(_with(f"the engine is out of reach (its proxy answered {status})", said))
        case 301 | 302 | 303 | 307 | 308:
            return EngineError("the engine's URL redirects: give the URL that it leads to")
        case None:
            return EngineError(_with("the engine failed", said))
        case _:
            return EngineError(_with(f"the engine failed (it answered {status})", said))


def body_of(content: bytes) -> object:
    """The JSON of an error's body, or its text where it is none."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return content.decode(errors="replace")


def retry_after(value: str | None) -> float | None:
    """The seconds of a `Retry-After` header; None where it is a date, or nonsense."""
    try:
        seconds = float(value) if value is not None else math.nan
    except ValueError:
        return None
    return seconds if 0 <= seconds < 86_400 else None


def _said(body: object) -> tuple[str, str, dict[str, Any]]:
    """The message, the kind of error, and the object that they stand in."""
    fields = body if isinstance(body, dict) else {}
    if isinstance(fields.get("error"), dict):
        fields = fields["error"]
    message = next((fields[key] for key in ("message", "error", "detail") if fields.get(key)), None)
    if isinstance(message, list):
        message = "; ".join(_complaint(item) for item in message[:5])
    if message is None and isinstance(body, str) and "<html" not in body.lower():
        message = body
    kinds = [fields[key] for key in ("type", "code", "err_type") if isinstance(fields.get(key), str)]
    return message if isinstance(message, str) else "", " ".join(kinds), fields


def _complaint(item: object) -> str:
    """One complaint of a validator: where, and what; never the input that it quotes."""
    if not isinstance(item, dict):
        return str(item)
    places = item.get("loc")
    where = ".".join(str(place) for place in places if place != "body") if isinstance(places, list) else ""
    return f"{where}: {item.get('msg', 'wrong')}" if where else str(item.get("msg", "wrong"))


def _code(fields: dict[str, Any], kind: str) -> int | None:
    for key in ("code", "status_code"):
        code = fields.get(key)
        if isinstance(code, int) and not isinstance(code, bool):
            return code
    return 400 if "BadRequest" in kind or "invalid_request" in kind else None


def _context_exceeded(message: str, kind: str, fields: dict[str, Any]) -> ContextExceeded | None:
    context, prompt = _CONTEXT.search(message), _PROMPT.search(message)
    if context is None and not any(name in kind for name in _EXCEEDED_KINDS):
        return None
    return ContextExceeded(
        _count(fields.get("n_prompt_tokens")) or (int(prompt[prompt.lastindex or 0]) if prompt else None),
        _count(fields.get("n_ctx")) or (int(context[1]) if context else None),
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _fit_to_pass_on(message: str) -> str:
    """One line without what it repeats of the prompt, cut to `MESSAGE_LIMIT`."""
    message = message[: 4 * MESSAGE_LIMIT].encode(errors="replace").decode()
    message = " ".join(_IDS.sub("[…]", _ECHO.sub("", message)).split())
    return message if len(message) <= MESSAGE_LIMIT else message[: MESSAGE_LIMIT - 1] + "…"


def _with(what: str, said: str) -> str:
    return f"{what}: {said}" if said else what
