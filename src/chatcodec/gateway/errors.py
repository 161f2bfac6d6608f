"""`ApiError`: what a client is told when something goes wrong, in OpenAI's shape."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ChatCodecError, UnsupportedInput
from ..events import ToolCall
from .engines import engine

LONGEST_MESSAGE = 1_000
"""Characters of an error's message: it says what is wrong, and does not repeat the input. In JSON a character has up
to six bytes, and a body shall stay under 8 KB."""
LONGEST_WAIT = 3600
"""Seconds that a client may be told to wait, whatever an engine says."""
LONGEST_SAID = 10_000
LONGEST_QUOTE = 40
_QUOTED = re.compile(rf"(['\"])((?:(?!\1).){{{LONGEST_QUOTE + 1},}})(?:\1|\Z)", re.DOTALL)
INVALID = "invalid_request_error"


class ApiError(Exception):
    """An answer that is an error.

    `status` is HTTP's, `type` and `code` are OpenAI's, `param` is the path in the request that is wrong.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = _shortened(message, LONGEST_MESSAGE)
        self.type = type
        self.param = None if param is None else _shortened(param, 200)
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


def _shortened(text: str, most: int) -> str:
    """The text without its middle where it is too long; lone surrogates cannot be sent."""
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= most else f"{text[: most * 2 // 3]} … {text[-most // 3 :]}"


def without_quotes(text: str) -> str:
    """The text with what it quotes of the input cut to `LONGEST_QUOTE` characters."""
    return _QUOTED.sub(lambda found: f"{found[1]}{found[2][:LONGEST_QUOTE]}…{found[1]}", text[:LONGEST_SAID])


def wrong(param: str | None, message: str, code: str | None = None) -> ApiError:
    """What the client sent is wrong; `param` is the path."""
    return ApiError(400, f"{param}: {message}" if param else message, param=param, code=code)


def unknown_model(model: str, known: Sequence[str]) -> ApiError:
    return ApiError(
        404,
        f"the model {model[:100]!r} does not exist here; this server has {known[0]!r}",
        param="model",
        code="model_not_found",
    )


def context_exceeded(prompt: int | None, context: int | None) -> ApiError:
    counts = f"This model's maximum context length is {context} tokens" if context else "The context is full"
    if prompt:
        counts += f"; the messages came to {prompt} tokens"
    return ApiError(400, f"{counts}.", param="messages", code="context_length_exceeded")


def saturated(message: str, retry_after: float) -> ApiError:
    return ApiError(
        429, message, type="rate_limit_error", code="rate_limit_exceeded", headers=_retry_after(retry_after)
    )


def unavailable(reason: str) -> ApiError:
    return ApiError(503, reason, type="server_error", code="unavailable", headers=_retry_after(5))


def stopping() -> ApiError:
    error = unavailable("the server is stopping")
    error.headers["x-should-retry"] = "false"
    return error


def no_call(attempts: Sequence[ToolCall]) -> ApiError:
    """The model did not do what `tool_choice` says. To ask it the same again would cost as much, and be in vain."""
    tried = "; ".join(f"it called {call.name[:LONGEST_QUOTE]!r}, which is {call.status}" for call in attempts[:3])
    return ApiError(
        502,
        "tool_choice: the model answered without the call that is wanted" + (f": {tried}" if tried else ""),
        type="server_error",
        param="tool_choice",
        code="tool_choice_not_met",
        headers={"x-should-retry": "false"},
    )


def timed_out(message: str, *, retry: bool = True) -> ApiError:
    headers = {} if retry else {"x-should-retry": "false"}
    return ApiError(504, message, type="server_error", code="timeout", headers=headers)


def _retry_after(seconds: float) -> dict[str, str]:
    # Not a number is less than nothing: what an engine says may be anything.
    return {"Retry-After": str(round(min(seconds, LONGEST_WAIT)) if seconds >= 1 else 1)}


def of(error: Exception) -> ApiError:
    """The answer to what was raised while a request was worked on."""
    match error:
        case ApiError():
            return error
        case UnsupportedInput():
            return wrong(error.path or None, without_quotes(error.reason))
        case ChatCodecError():
            return ApiError(400, without_quotes(str(error)), param="messages", code="template_error")
        case engine.ContextExceeded():
            return context_exceeded(error.prompt_tokens, error.context)
        case engine.EngineRefused():
            return ApiError(400, f"the engine refuses the request: {without_quotes(str(error))}", code="engine_refused")
        case engine.EngineBusy():
            return saturated(f"the engine is busy: {error}", error.retry_after or 1)
        case engine.EngineTimeout():
            return timed_out(f"the engine does not answer: {error}")
        case engine.EngineError():
            return ApiError(502, f"from the engine: {error}", type="server_error", code="engine_error")
        case _:
            return ApiError(500, "an error inside the server", type="server_error", code="internal_error")
