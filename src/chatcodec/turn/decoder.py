"""The decoder: an assistant's turn, read while it is written.

It is fed text or token ids in pieces of any size, knows no socket and no engine, and says events. What it guarantees:
the same output gives the same events' texts, calls and message, however it was cut; nothing that the model wrote is
lost; time is linear in the output, and what is held beside the message is bounded.

A marker counts where what follows can be what the format says. To find out, the decoder reads on, and goes back where
it was wrong (`Stream.record`): what it takes for the beginning of a call is said only when it is one.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping
from operator import index
from typing import Protocol

from ..errors import UnsupportedInput
from ..events import Event, FinishReason, ToolCall
from ..messages import Message, Tool
from . import channels, sections
from .begun import begun
from .calls import Limits
from .checks import check
from .controls import Controls
from .format import TurnFormat
from .grammar import grammar
from .schemas import Schemas
from .state import Turn


def read_ids(ids: Iterable[int], path: str) -> list[int]:
    """Token ids of any kind of sequence, as plain numbers. Raises `UnsupportedInput`."""
    if isinstance(ids, str | bytes | bytearray):
        raise UnsupportedInput(path, f"a list of token ids is needed, not {type(ids).__name__}")
    try:
        given = list(ids)
    except TypeError as error:
        raise UnsupportedInput(path, f"a list of token ids is needed: {error}") from None
    read: list[int] = []
    for place, token in enumerate(given):
        try:
            read.append(index(token))
            if isinstance(token, bool):
                raise TypeError
        except TypeError:
            raise UnsupportedInput(f"{path}[{place}]", f"a token id is a number, not {token!r:.100}") from None
        if read[-1] < 0:
            raise UnsupportedInput(f"{path}[{place}]", f"a token id is a number from 0 on, not {token!r}")
    return read


class Vocabulary(Protocol):
    """What is needed of a tokenizer to feed ids."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes that the token stands for; they need be no whole characters."""
        ...

    def control_tokens(self) -> Mapping[str, int]:
        """The special tokens: text and id."""
        ...


class Decoder:
    """Decodes one turn.

    `prompt` is what was sent to the model, as text (or its ids, with a `vocabulary`): its end tells whether reasoning
    is open already; without it the format's own generation prompt counts. `tools` are the declared tools in OpenAI's
    shape: they give arguments their types, and calls of others the status "unknown_tool".
    """

    def __init__(
        self,
        turn: TurnFormat,
        *,
        prompt: str | Iterable[int] | None = None,
        tools: list[Tool] | None = None,
        vocabulary: Vocabulary | None = None,
        limits: Limits | None = None,
    ) -> None:
        check(turn)
        self._given_format = turn
        self._vocabulary = vocabulary
        self._limits = limits or Limits()
        self._schemas = Schemas(tools or None)
        self._prompt = turn.prompt if prompt is None else self._as_text(prompt)
        self._kind: type | None = None
        self._turn: Turn | None = None
        self._message: Message | None = None
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._controls: dict[int, str] = {}

    def _as_text(self, prompt: str | Iterable[int]) -> str:
        if isinstance(prompt, str):
            return prompt
        if self._vocabulary is None:
            raise UnsupportedInput("prompt", "ids need a vocabulary to be read with")
        return b"".join(map(self._vocabulary.token_bytes, prompt)).decode("utf-8", "replace")

    # -- feeding

    def feed(self, piece: str | Iterable[int]) -> list[Event]:
        """Take a piece of the output, text or ids, and say what is certain by now.

        Raises `UnsupportedInput` where text follows ids or ids text, where ids come without a vocabulary, and for what
        is neither.
        """
        if isinstance(piece, str):
            if not piece:
                return []
            turn = self._turn
            return (turn if turn is not None and self._kind is str else self._begin(str)).feed(piece)
        ids = read_ids(piece, "output")
        if not ids:
            return []
        return self._begin(list).feed("".join(map(self._decoded, ids)))

    def _begin(self, kind: type) -> Turn:
        if self._turn is None:
            self._kind = kind
            form, prompt, control = self._given_format, self._prompt, None
            if kind is list:
                if self._vocabulary is None:
                    raise UnsupportedInput("output", "ids need a vocabulary to be read with")
                control = Controls(form, self._vocabulary.control_tokens())
                form, prompt = control.format, control.hidden(prompt)
                self._controls = control.characters
            marks = grammar(form)
            self._turn = Turn(marks, prompt, self._schemas, self._limits, control)
            read = channels.read if form.channels else sections.read
            self._turn.begin(read(self._turn), begun(form, prompt))
        if kind is not self._kind:
            raise UnsupportedInput("output", "text and ids cannot be mixed in one turn")
        return self._turn

    def _decoded(self, token: int) -> str:
        character = self._controls.get(token)
        assert self._vocabulary is not None
        if character is not None:
            return self._utf8.decode(b"", True) + character
        return self._utf8.decode(self._vocabulary.token_bytes(token))

    def close(self, finish_reason: FinishReason | None = None) -> list[Event]:
        """The output is over; `finish_reason` is what the engine says about that, "length" where it was cut."""
        turn = self._begin(self._kind or str)
        rest = self._utf8.decode(b"", True)
        return (turn.feed(rest) if rest else []) + turn.close(finish_reason)

    # -- what came

    @property
    def calls(self) -> list[ToolCall]:
        """All attempts at a call so far, whatever their status."""
        return list(self._turn.calls) if self._turn else []

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the turn ended; None while it goes on."""
        return self._turn.reason if self._turn else None

    @property
    def rest(self) -> str:
        """What the output says behind the end of the turn."""
        return "".join(self._turn.rest) if self._turn else ""

    @property
    def message(self) -> Message:
        """What has come so far, in OpenAI's shape: `role`, `content` (None where there is none), and where there are
        any `reasoning_content` and `tool_calls`, arguments as JSON strings. Only whole calls to declared tools
        are in it."""
        message: Message = {"role": "assistant", "content": None}
        if self._turn is not None:
            self._turn.write(message)
        return message
