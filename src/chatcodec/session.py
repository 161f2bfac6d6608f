"""`Session`: a conversation in token ids, that only ever grows.

In: messages, and the ids that the model sampled. Out: the next prompt's ids, which go on from what was sent and
sampled, to the id; what the model sampled is never encoded again. What stands between a completion and the next prompt
is the template's (`tails`), so that a turn costs what is new.

With `history="template"` each prompt is that of the whole conversation, encoded anew, and what of it was sent and
sampled before is known by comparing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, NamedTuple, get_args

from .completions import BothWays
from .departures import Departure, departures
from .errors import UnsupportedInput
from .events import FinishReason, ToolCall
from .messages import Message, plain, read_messages, read_tools
from .prompt import Prompt
from .tails import Tails, counted
from .tokens.samples import Sample
from .tokens.turns import shared
from .turn.decoder import Decoder, read_ids

HISTORIES = ("sampled", "template")
TRUNCATED = ("close", "refuse")


class _Asked(NamedTuple):
    """The prompt that waits for a completion: `text` is what the model goes on from, `ids` are what comes behind the
    first `kept` ids of what was said, and `departure` tells what became of the others."""

    text: str
    kept: int
    ids: list[int]
    departure: Departure | None = None


class Session:
    """See `Codec.session`. One session is for one thread at a time."""

    def __init__(
        self, codec: BothWays, tools: Any = None, *, history: str = "sampled", **template_variables: Any
    ) -> None:
        if history not in HISTORIES:
            raise UnsupportedInput("history", f"it is one of {', '.join(HISTORIES)}")
        self._codec = codec
        self._tools = read_tools(tools)
        self._history = history
        self._variables = template_variables
        self._completions = codec.completions(**template_variables)
        self._tails = Tails(codec, self._completions, self._tools, template_variables)
        self._messages: list[Message] = []
        self._said = Sample()
        self._turns: list[tuple[int, int]] = []
        self._last: list[int] = []
        self._asked: _Asked | None = None
        self._changed: list[Departure] = []
        self._before: list[Sample] = []
        self._decoder: Decoder | None = None

    # -- what goes in

    def add(self, messages: Any) -> list[int]:
        """Add messages, and give the ids of the next prompt.

        Messages that are added before the model has said anything to those before are part of the same prompt. Raises
        `UnsupportedInput` for what the template cannot carry, `messages[0]` being the conversation's first; the session
        is then as it was.
        """
        given = [*self._messages, *_read_messages(messages, len(self._messages))]
        self._asked = self._ask(given)
        self._messages = given
        return self.prompt

    def add_completion(
        self,
        ids: Iterable[int],
        *,
        logprobs: Iterable[float | None] | None = None,
        finish_reason: FinishReason | None = None,
        truncated: str = "close",
    ) -> Message:
        """Add what the model sampled after `prompt`, and give the message that it says.

        `ids` are as the engine gave them, with the token that ended the turn or without. `logprobs` has one number an
        id. `finish_reason` is the engine's; a completion that was cut ("length", or open reasoning or an open call at
        its end) is closed as the format closes it, or, with `truncated="refuse"`, raises `UnsupportedInput`; the
        session is then as it was.
        """
        asked = self._asked
        if asked is None:
            raise UnsupportedInput("completion", "nothing was asked: add messages first")
        if truncated not in TRUNCATED:
            raise UnsupportedInput("truncated", f"it is one of {', '.join(TRUNCATED)}")
        if finish_reason is not None and finish_reason not in get_args(FinishReason):
            raise UnsupportedInput("finish_reason", f"it is one of {', '.join(get_args(FinishReason))}, or None")
        sampled = read_ids(ids, "completion")
        given = None if logprobs is None else _read_logprobs(logprobs, len(sampled))
        decoder = self._decoded(asked, sampled, finish_reason)
        cut = decoder.finish_reason == "length"
        if cut and truncated == "refuse":
            raise UnsupportedInput("completion", "it was cut before its end")
        closing = self._completions.closing(asked.text, sampled).ids if cut else []
        self._say(asked, sampled, given, closing)
        message = decoder.message
        self._messages = [*self._messages, message]
        self._decoder = decoder
        return plain(message, "message")  # type: ignore[no-any-return]

    def _decoded(self, asked: _Asked, ids: list[int], finish_reason: FinishReason | None) -> Decoder:
        # Calls without an id of their own get one by the prompt's text; the number keeps it another in each turn.
        decoder = self._codec.decoder(f"{len(self._messages)} {asked.text}", self._tools, **self._variables)
        decoder.feed(ids)
        decoder.close(finish_reason)
        return decoder

    def _say(self, asked: _Asked, sampled: list[int], logprobs: list[float | None] | None, closing: list[int]) -> None:
        if asked.departure is not None:
            self._changed.append(asked.departure)
            self._before.append(self._said)
            self._said = self._said.up_to(asked.kept)
        said = self._said
        said.add(asked.ids, trained=False)
        self._turns.append((len(self._messages), len(said)))
        said.add(sampled, trained=True, logprobs=logprobs)
        said.end_turn(len(self._messages))
        said.add(closing, trained=False)
        self._last = closing or sampled
        self._asked = None

    # -- what comes out

    @property
    def prompt(self) -> list[int]:
        """The ids to send: what was said, and what was added since."""
        asked = self._asked
        return self._said.input_ids.copy() if asked is None else [*self._said.input_ids[: asked.kept], *asked.ids]

    @property
    def messages(self) -> list[Message]:
        """The conversation so far."""
        return plain(self._messages, "messages")  # type: ignore[no-any-return]

    @property
    def calls(self) -> list[ToolCall]:
        """All attempts at a call in the last completion, those too that are broken, cut, or of no declared tool."""
        return self._decoder.calls if self._decoder else []

    @property
    def finish_reason(self) -> FinishReason | None:
        """How the last completion ended: "length" where it was cut."""
        return self._decoder.finish_reason if self._decoder else None

    def training_sample(self) -> Sample:
        """What was sent and sampled up to the last completion: the loss counts what was sampled, as it was handed in.

        Messages that were added since are not in it. With `history="template"`, turns that the template has changed
        since are not in it either; see `training_samples`.
        """
        return self._said.up_to(len(self._said))

    def training_samples(self) -> list[Sample]:
        """The samples that hold all that was sampled, each turn in one of them: the last one is `training_sample`, and
        each before it ends where the template then changed what had been said."""
        found: list[Sample] = []
        done: set[int] = set()
        for sample in reversed([*self._before, self._said]):
            fresh = sample.up_to(len(sample)).only([turn for turn in sample.turns if turn not in done])
            done.update(sample.turns)
            if fresh.turns or not found:
                found.append(fresh)
        return found[::-1]

    @property
    def departures(self) -> list[Departure]:
        """Where the session's ids differ from those of the whole conversation, encoded anew.

        With `history="template"`: for each prompt that did not go on from what was sent and sampled, where it first
        changed. Raises `UnsupportedInput` where the template does not take the whole conversation.
        """
        if self._history == "template":
            pending = self._asked.departure if self._asked else None
            return [*self._changed, *([pending] if pending else ())]
        if not self._messages:
            return []
        asked = self._asked is not None
        fresh = self._codec.encode(self._messages, self._tools, asked, **self._variables)
        ours, end = self.prompt, len(fresh.text)
        if not asked:
            ours, end = self._unended(ours, fresh)
        return departures(ours, self._turns, fresh, end, self._codec.encoder.controls.ids)

    def _unended(self, ids: list[int], fresh: Prompt) -> tuple[list[int], int]:
        """The ids up to what ends the last turn, and where that begins in the render: what follows is not said yet."""
        found = self._completions.after_turn(fresh, len(self._messages) - 1)
        marker, end = found or (len(fresh.text), len(fresh.text))
        ending = self._completions.ending(self._last, fresh.text[marker:], fresh.text[marker:end])
        return ids[: len(ids) - ending.ids], marker

    def fork(self) -> Session:
        """A session that goes its own way from here; what was said so far costs a copy of the ids' list."""
        other = copy.copy(self)
        other._said = self.training_sample()
        other._tails = self._tails.copy()
        other._turns = self._turns.copy()
        other._changed = self._changed.copy()
        other._before = self._before.copy()
        return other

    # -- the next prompt

    def _ask(self, messages: list[Message]) -> _Asked:
        if not self._turns:
            prompt = self._codec.encode(messages, self._tools, **self._variables)
            return _Asked(prompt.text, 0, prompt.ids)
        if self._history == "template":
            return self._rendered(messages)
        tail = self._tails.after(messages, self._turns[-1][0])
        text = tail.text
        written = self._completions.ending(self._last, text, tail.ending).characters
        return _Asked(text, len(self._said), tail.ids_from(written))

    def _rendered(self, messages: list[Message]) -> _Asked:
        prompt = self._codec.encode(messages, self._tools, **self._variables)
        ids, said = prompt.ids, self._said.input_ids
        kept = shared(said, ids)
        departure = Departure(kept, len(said), ids[kept:]) if kept < len(said) else None
        return _Asked(prompt.text, kept, ids[kept:], departure)


def _read_messages(messages: Any, before: int) -> list[Message]:
    """`before` is how many messages stand before them in the conversation; errors count those."""
    try:
        return read_messages(messages)
    except UnsupportedInput as error:
        raise counted(error, before) from None


def _read_logprobs(logprobs: Iterable[float | None], count: int) -> list[float | None]:
    given = list(logprobs)
    if len(given) != count:
        raise UnsupportedInput("logprobs", f"{len(given)} numbers for {count} ids")
    for place, number in enumerate(given):
        if isinstance(number, str) or not (number is None or hasattr(number, "__float__")):
            raise UnsupportedInput(f"logprobs[{place}]", f"a number or None is needed, not {number!r}")
    return [None if number is None else float(number) for number in given]
