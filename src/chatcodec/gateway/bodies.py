"""The body of a request, looked at before it is decoded: how long, how deep, and of how many values it is."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import TypeVar

import msgspec
from starlette.requests import Request

from .errors import ApiError, without_quotes, wrong
from .settings import BodyLimits

T = TypeVar("T")

LET_GO = 8
"""How many times the limit is still read, and thrown away, of a body that is too long."""
LET_GO_SECONDS = 2.0

# Strings, and all else that does not count, are passed over in one match with the mark behind them, and every place has
# a match: both keep the time linear, whatever the body.
_MARK = re.compile(rb'(?:[^"\[\]{},]++|"[^"\\]*+(?:\\(?:.|\Z)[^"\\]*+)*+(?:"|\Z))*+([\[\]{},]|\Z)', re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(\w+)`")


async def read_body(request: Request, limits: BodyLimits) -> bytes:
    """The whole body. Raises `ApiError` 413 as soon as it is known to be too long."""
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > limits.size:
        if "expect" not in request.headers:
            await _let_go(request, limits)
        raise _too_large(limits)
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limits.size:
            await _let_go(request, limits)
            raise _too_large(limits)
    return bytes(body)


async def _let_go(request: Request, limits: BodyLimits) -> None:
    """Reads on for a while: a client that still sends when the connection is closed does not get its answer."""
    passed = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(LET_GO_SECONDS):
            async for piece in request.stream():
                passed += len(piece)
                if passed > LET_GO * limits.size:
                    break


def _too_large(limits: BodyLimits) -> ApiError:
    # What is left of the body is not read, so the connection cannot be used again.
    return ApiError(
        413,
        f"the body is larger than {limits.size} bytes",
        code="request_too_large",
        headers={"Connection": "close"},
    )


def check_shape(body: bytes, limits: BodyLimits, path: str | None = None) -> None:
    """Raises `ApiError` for a body that is too deep or of too many values; whether it is JSON is not looked at.

    `path` is where in the request it stands, if it is not all of it.
    """
    what = "it" if path else "the body"
    depth = values = 0
    for match in _MARK.finditer(body):
        mark = match[1]
        if mark == b",":
            values += 1
        elif mark in (b"[", b"{"):
            depth += 1
            values += 1
            if depth > limits.depth:
                raise wrong(path, f"{what} is deeper than {limits.depth} levels of lists and objects", "too_deep")
        elif depth == 0:
            return  # the end, or it closes what was never opened: the decoder will not come further
        else:
            depth -= 1
        if values > limits.values:
            raise wrong(path, f"{what} holds more than {limits.values} values", "too_many_values")


def decode_body(body: bytes, shape: type[T], limits: BodyLimits) -> T:
    """The body as `shape`. Raises `ApiError` with the path of what is wrong."""
    if not body.strip():
        raise wrong(None, "the body is empty; a JSON object is wanted", "invalid_json")
    check_shape(body, limits)
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise wrong(None, f"the body is not valid JSON: {error}", "invalid_json") from None


def _invalid(said: str) -> ApiError:
    """What msgspec says, such as "Expected `int`, got `str` - at `$.stop[1]`", as an error with the path."""
    message, _, path = said.rpartition(" - at `$")
    if not message:
        message, path = said, ""
    path = path.rstrip("`")
    if missing := _MISSING.fullmatch(message):
        message, path = "it is missing", f"{path}.{missing[1]}"
    message = message[:1].lower() + message[1:]
    message = without_quotes(message)
    if message.startswith("invalid enum value"):
        message += "; /openapi.json lists those that there are"
    return wrong(path.lstrip(".") or None, message if path else f"the body: {message}")
