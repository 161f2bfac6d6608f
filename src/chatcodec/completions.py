"""Completions as token ids, and what the template writes between them.

A completion is what the model writes after a prompt, up to and with what ends its turn. What stands between two
completions (the rest of the turn's end, other messages, the next generation prompt) is the template's, and is read off
a render that holds them: nothing here knows a format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from . import laws
from .errors import UnsupportedInput
from .messages import Message, Tool, child_path
from .prompt import Prompt
from .template import Template
from .tokens.encoding import Encoder, UnencodableText
from .tokens.tokenizer import Tokenizer
from .tokens.turns import Turn
from .turn.compose import State, begin
from .turn.controls import Controls
from .turn.decoder import Decoder
from .turn.format import TurnFormat
from .turn.grammar import SENTINELS, tokens
from .turn.said import read_message

STAND_IN = "…"
"""A text in place of one that does not matter."""
MOST_SPACES = 16
"""White space behind what ends a turn that a model is thought to write."""
_SENTINEL = re.compile(f"[{chr(SENTINELS[0])}-{chr(SENTINELS[-1])}]")
_SURROGATE = re.compile("[\ud800-\udfff]")


class BothWays(Protocol):
    """What is needed of a `Codec`."""

    @property
    def template(self) -> Template: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def encoder(self) -> Encoder: ...
    @property
    def stops(self) -> tuple[str, ...]: ...
    def encode(self, messages: Any, tools: Any = None, add_generation_prompt: bool = True, **more: Any) -> Prompt: ...
    def decoder(self, prompt: str | None = None, tools: Any = None, **more: Any) -> Decoder: ...
    def completions(self, **template_variables: Any) -> Completions: ...


@dataclass(frozen=True, slots=True)
class Completion:
    """What the model writes: `text` as it reads, and its ids."""

    text: str
    ids: list[int]


class Ending(NamedTuple):
    """What ends a turn, as far as the model wrote it: how many `ids` of its completion, how many `characters` of what
    the template writes behind the turn."""

    ids: int
    characters: int


class Completions:
    """The completions of a codec in one format, that of a set of template variables."""

    def __init__(self, codec: BothWays, form: TurnFormat, variables: Mapping[str, Any]) -> None:
        self._codec = codec
        self._form = form
        self._variables = dict(variables)
        self._ends: dict[tuple[bool, str], str] = {}

    @cached_property
    def _hidden(self) -> Controls:
        return Controls(self._form, self._codec.tokenizer.control_tokens())

    @property
    def has_end(self) -> bool:
        """Whether the format has an end of its own."""
        return bool(self._form.channels) or any(map(str.strip, self._form.ends))

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """The control tokens that end a turn: the format's, and those that the source and the special tokens name; in a
        format without an end of its own also what opens other turns."""
        known = self._codec.tokenizer.control_tokens()
        texts = (*self._form.ends, *self._codec.stops, *(() if self.has_end else self._form.next_turns))
        return frozenset(known[text.strip()] for text in texts if text.strip() in known)

    def compose(
        self, message: Message, prompt: str | None, tools: list[Tool] | None, *, end: bool, follower: str | None = None
    ) -> Completion:
        """The completion that decodes to `message`, with `end` up to and with what ends the turn.

        Control tokens are only what the format writes. Where the format has no end of its own, that is what opens the
        turn of `follower`, a role. Raises `UnsupportedInput` where the format cannot carry the message.
        """
        _check_text(message, "")
        hidden = self._hidden
        turn = _turn_in(self._form.prompt if prompt is None else prompt, self._form)
        tail = None if prompt is None else hidden.hidden(turn)
        try:
            written = laws.compose_faithfully(hidden.format, message, prompt=tail, tools=tools)
        except UnsupportedInput as error:
            raise UnsupportedInput(error.path, hidden.told(error.reason)) from None
        if end:
            written += hidden.hidden(self._end_of(message, follower))
        return self._completion(written, behind=turn)

    def compose_open(self, message: Message, prompt: str | None) -> Completion:
        """The completion of a message that goes on; see `laws.compose_open`."""
        _check_text(message, "")
        hidden = self._hidden
        turn = _turn_in(self._form.prompt if prompt is None else prompt, self._form)
        try:
            written = laws.compose_open(hidden.format, message, prompt=None if prompt is None else hidden.hidden(turn))
        except UnsupportedInput as error:
            raise UnsupportedInput(error.path, hidden.told(error.reason)) from None
        return self._completion(written, behind=turn)

    def as_written(self, message: Message) -> Message:
        """The message as the template takes it: reasoning that stands inline before the content is apart, and there is
        no white space at the ends of texts that it takes off."""
        message = self._taken_apart(message)
        said, form = read_message(message), self._form
        written = dict(message)
        for text, path, section in (
            (said.content, said.content_path, form.content),
            (said.reasoning, said.reasoning_path, form.reasoning),
        ):
            if text and section is not None:
                written[path] = text.lstrip(section.strip_left).rstrip(section.strip_right)
        return written

    def _taken_apart(self, message: Message) -> Message:
        section, content = self._form.reasoning, message.get("content")
        if section is None or not section.open.strip() or not isinstance(content, str):
            return message
        if not content.lstrip().startswith(section.open.strip()) or section.close.strip() not in content:
            return message
        decoder = Decoder(self._form, prompt=self._form.header)
        decoder.feed(content)
        decoder.close("stop")
        inline = decoder.message
        if read_message(message).reasoning or decoder.calls or not inline.get("reasoning_content"):
            return message
        return {**message, "content": inline["content"] or "", "reasoning_content": inline["reasoning_content"]}

    def closing(self, prompt: str, completion: Sequence[int]) -> Completion:
        """What closes reasoning, or content in marks of its own, that a completion, cut short, left open."""
        hidden = self._hidden
        written = hidden.hidden(_turn_in(prompt, self._form)) + self._read(completion)
        reasoning, content = hidden.format.reasoning, hidden.format.content
        begun = begin(hidden.format, written)
        if reasoning and begun.state is State.OPEN:
            return self._completion(reasoning.close)
        opened = begun.tail.rfind(content.open.strip()) if content.open.strip() else -1
        if opened >= 0 and content.close.strip() not in begun.tail[opened:]:
            return self._completion(content.close)
        return Completion("", [])

    def ending(self, completion: Sequence[int], tail: str, end: str) -> Ending:
        """How much of what follows a completion it has written itself: `tail` is that, and `end`, which it begins
        with, is what ends the turn."""
        hide = self._hidden.hidden
        following, most = hide(tail[: len(end) + MOST_SPACES]), len(hide(end))
        most += _spaces(following[most:])
        first = (*tokens(hide(end)), following)[0]
        least = following.find(first) + len(first)
        said = self._read(completion[-4 * most - MOST_SPACES :])
        lengths = range(most, max(least, 1) - 1, -1)
        found = next((length for length in lengths if said.endswith(following[:length])), 0)
        if found:
            return Ending(self._ids_of(completion, found), len(self._hidden.shown(following[:found])))
        if completion and completion[-1] in self.stop_ids:
            return Ending(1, len(end) if self._is_mere_end(tail[len(end) :]) else 0)
        return Ending(0, _spaces(end) if said.endswith(end[: _spaces(end)]) else 0)

    def _is_mere_end(self, behind: str) -> bool:
        """Whether what ends a turn says no more than that, so that another stop may stand for it; it does where the
        next turn is opened `behind` it."""
        openers = tuple(filter(None, (*self._form.next_turns, self._form.header)))
        return self.has_end and (not self._form.next_turns or behind.lstrip().startswith(openers))

    def _ids_of(self, ids: Sequence[int], length: int) -> int:
        """How many of the last ids hold the last `length` characters."""
        return next((n for n in range(1, len(ids) + 1) if len(self._read(ids[-n:])) >= length), len(ids))

    def _read(self, ids: Sequence[int]) -> str:
        """The ids as text; control tokens of the format are the characters that stand for them."""
        characters, tokenizer = self._hidden.characters, self._codec.tokenizer
        texts: list[str] = []
        for is_control, run in groupby(ids, characters.__contains__):
            if is_control:
                texts += map(characters.__getitem__, run)
            else:
                texts.append(b"".join(map(tokenizer.token_bytes, run)).decode("utf-8", "replace"))
        return "".join(texts)

    def _completion(self, written: str, *, behind: str = "") -> Completion:
        """The text with its control tokens as they read, and its ids `behind` the end of a prompt."""
        text, owned, position = "", [], 0
        for match in _SENTINEL.finditer(written):
            piece = written[position : match.start()]
            owned.append((len(text), len(text) + len(piece)))
            text += piece + self._hidden.shown(match[0])
            position = match.end()
        owned.append((len(text), len(text) + len(written) - position))
        text += written[position:]
        encoder = self._codec.encoder
        pieces = encoder.controls.cut(text, [(start, end) for start, end in owned if start < end])
        try:
            ids = encoder.ids(text, pieces, continued=True)
            if pieces and pieces[0].control is None:
                first = text[: pieces[0].end]
                ids = self._going_on(first, behind) + ids[len(encoder.plain(first)) :]
        except UnencodableText as error:
            raise UnsupportedInput("message", error.reason) from None
        return Completion(text, ids)

    def _going_on(self, text: str, behind: str) -> list[int]:
        """The ids of a text that goes on from another one: some vocabularies begin each text with a space."""
        encoder = self._codec.encoder
        ids = encoder.plain(text)
        if b"".join(map(encoder.tokenizer.token_bytes, ids)) == text.encode():
            return ids
        pieces = encoder.controls.cut(behind)
        if not pieces or pieces[-1].control is not None:
            return ids
        before = behind[pieces[-1].start :]
        known, whole = encoder.plain(before), encoder.plain(before + text)
        return whole[len(known) :] if whole[: len(known)] == known else ids

    # -- between completions

    def _end_of(self, message: Message, follower: str | None) -> str:
        """What the model writes to end the turn of `message`.

        Behind calls many templates write another end, so it is read off a render; in a format without an end of its
        own it is what opens the next turn, that of `follower`: by default a tool's behind calls, else the user's.
        """
        form, calls = self._form, bool(message.get("tool_calls"))
        ends = [end.rstrip() or end for end in form.ends]
        if form.channels:
            call_end = form.channels.call_end
            own = call_end if calls else next((end for end in ends if end != call_end), "")
            return own or form.channels.end
        if self.has_end and not calls:
            return ends[0]
        role = "tool" if calls and (self.has_end or follower is None) else follower or "user"
        if (calls, role) not in self._ends:
            self._ends[calls, role] = self._rendered_end(calls, role)
        return self._ends[calls, role] or "".join(ends[:1])

    def _rendered_end(self, calls: bool, role: str) -> str:
        call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {}}}
        said: Message = {"role": "assistant", "content": STAND_IN}
        said = {**said, "content": "", "tool_calls": [call]} if calls else said
        next_one: Message = {"role": role, "content": STAND_IN}
        if role == "tool":
            next_one["tool_call_id"] = call["id"]
        try:
            prompt = self._codec.encode([{"role": "user", "content": STAND_IN}, said, next_one], **self._variables)
        except UnsupportedInput:
            return ""
        found = self.after_turn(prompt, 1)
        end = prompt.text[slice(*found)] if found else ""
        closed = self._form.calls.close if self._form.calls and calls else ""
        return end[_spaces(end) :] if _spaces(end) and closed.endswith(end[: _spaces(end)]) else end

    def after_turn(self, prompt: Prompt, place: int) -> tuple[int, int] | None:
        """Where in a prompt that which ends the turn of the assistant's message at `place` begins, and where it ends.

        None where the turn is not found.
        """
        turn = next((turn for turn in prompt.tokenized.turns if turn.message == place), None)
        return None if turn is None else (turn.marker - len(self._lead(prompt.text, turn)), turn.end)

    def _lead(self, text: str, turn: Turn) -> str:
        """What of a turn's end stands before its `marker`: white space, or, of messages in channels, all of it."""
        if turn.marker == turn.end and self._form.channels:
            end = self._form.channels.end
            return end if text.endswith(end, turn.start, turn.marker) else ""
        core = text[turn.marker : turn.end]
        leads = (end[: _spaces(end)] for end in self._form.ends if end.strip() == core.strip())
        return next((lead for lead in leads if text.endswith(lead, turn.start, turn.marker)), "")


def _turn_in(prompt: str, form: TurnFormat) -> str:
    """What stands in a prompt from the last turn's header on: all that the rest of the turn depends on."""
    place = prompt.rfind(form.header) if form.header else -1
    return prompt[place:] if place >= 0 else prompt


def _spaces(text: str) -> int:
    return len(text) - len(text.lstrip())


def _check_text(value: Any, path: str) -> None:
    """Raises `UnsupportedInput` for half a surrogate pair, which has no ids."""
    if isinstance(value, str):
        found = _SURROGATE.search(value)
        if found:
            raise UnsupportedInput(path, f"half a surrogate pair, U+{ord(found[0]):04X}, is no text")
    elif isinstance(value, dict):
        for name, item in value.items():
            below = child_path(path, name) if path else name
            _check_text(name, below)
            _check_text(item, below)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            _check_text(item, child_path(path, place))
