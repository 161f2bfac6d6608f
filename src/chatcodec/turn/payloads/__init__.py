"""How a call's arguments are written: each way one module, which holds both directions."""

from __future__ import annotations

from typing import Any, assert_never

from ..format import BareArguments, JsonArguments, KeywordArguments, Payload, TaggedArguments
from ..stream import Reading, Stream
from . import bare, json_object, keyword, tagged
from .reading import Caller

__all__ = ["read", "write"]


def write(payload: Payload, arguments: dict[str, Any]) -> str:
    """The arguments as the template writes them between its literals.

    Numbers may be `Decimal`. Raises `UnsupportedInput`, its path from `arguments` on, for what cannot be written so.
    """
    match payload:
        case JsonArguments():
            return json_object.write(payload, arguments)
        case TaggedArguments():
            return tagged.write(payload, arguments)
        case KeywordArguments():
            return keyword.write(payload, arguments)
        case BareArguments():
            return bare.write(payload, arguments)
        case _:
            assert_never(payload)


def read(stream: Stream, payload: Payload, call: Caller) -> Reading[None]:
    """Read the arguments, and emit their JSON to `call`.

    Raises `Broken` where they are not what the format says, and `Cut` where the output ends inside them.
    """
    match payload:
        case JsonArguments():
            return json_object.read(stream, call)
        case TaggedArguments():
            return tagged.read(stream, payload, call)
        case KeywordArguments():
            return keyword.read(stream, payload, call)
        case BareArguments():
            return bare.read(stream, payload, call)
        case _:
            assert_never(payload)
