"""Reads a template's turn format off its renders.

`derive` renders some small conversations, in which each text is a word of its own, and compares where the words stand.
It knows nothing of the template but these renders, and no format by its name. The same template always gives the same
format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

from ..errors import FormatNotDerived
from .derive_calls import Written, complete, grown, read_calls
from .derive_markers import (
    closing_part,
    common_end,
    common_start,
    find_mirror,
    first_marker,
    leading_marker,
    markers,
    mirrored,
    mirrors,
    unique,
)
from .format import WHITESPACE, Calls, Channels, Literal, Section, TurnFormat
from .probes import (
    CONTENT,
    NEXT,
    REASONING,
    SYSTEM,
    Probes,
    Trace,
    Turn,
    assistant,
    call,
    definitions,
    results,
    user,
)

SETTINGS: tuple[dict[str, Any], ...] = ({}, {"enable_thinking": True}, {"thinking": True})
"""What may bring a template to write reasoning."""
OTHER_SETTINGS: tuple[dict[str, Any], ...] = ({"enable_thinking": False}, {"thinking": False})
INLINE = ("<think>", "</think>")
"""How reasoning may be given within content, for a template to take out."""
SHOWN = 160
_CHANNEL = re.compile(r"(<[^<>]+>)(\w+)(<[^<>]+>)\Z")
_GAP = "\0"
"""Stands for a field in a call's header."""


def derive(trace: Trace, *, template: str = "chat_template") -> TurnFormat:
    """The format in which a template writes the assistant's turn.

    `trace(messages, tools, add_generation_prompt, **variables)` renders a conversation, traced, and raises
    `TemplateError` or `UnsupportedInput` for one that it cannot. Raises `FormatNotDerived` where the renders do not
    show how a turn is written.
    """
    return _Reader(Probes(trace), template).format()


class _Reader:
    """One derivation. Its properties are what has been found out, each from those before it."""

    def __init__(self, probes: Probes, template: str) -> None:
        self.probes = probes
        self.template = template

    def format(self) -> TurnFormat:
        channels = self.channels
        return TurnFormat(
            header=self.header,
            prompt=self.prompt,
            ends=self.ends,
            reasoning=None if channels else self.reasoning,
            no_reasoning=None if channels else self.no_reasoning,
            content=Section() if channels else self.content,
            calls=self.calls,
            order=self.order,
            next_turns=self.next_turns,
            channels=channels,
        )

    def _fail(self, reason: str, *texts: str) -> FormatNotDerived:
        seen = [repr(text[-SHOWN:]) for text in texts] + self.probes.errors[:3]
        return FormatNotDerived(reason, template=self.template, seen=tuple(seen))

    # -- turns

    @cached_property
    def plain(self) -> Turn:
        """A turn of content alone."""
        turn = self._turn(assistant(), "content")
        if turn is None:
            render = self.probes.render([user(), assistant()])
            texts = (render.text,) if render else ()
            raise self._fail("no conversation brings it to write the content of an assistant's message", *texts)
        return turn

    def _turn(self, message: dict[str, Any], *kinds: str, **variables: Any) -> Turn | None:
        """The first turn of `message` in which fields of these kinds are written."""
        return next((turn for turn in self.probes.turns(message, **variables) if turn.has(*kinds)), None)

    @cached_property
    def tools(self) -> Any:
        """Definitions of tools, where nothing is written without them."""
        return None if self.probes.render([user(), assistant()]) is not None else definitions()

    @cached_property
    def past(self) -> Turn | None:
        """A turn of content alone that the user has answered."""
        return self.probes.turn(assistant(), [user(NEXT)], self.tools)

    @cached_property
    def thoughtful(self) -> tuple[Turn, dict[str, Any]] | None:
        """A turn with reasoning, and content or a call, with the variables that it takes."""
        for variables in self._settings:
            for message, kinds in self._thoughts:
                turn = self._turn(message, *kinds, **variables)
                if turn is not None and ("content" not in kinds or _adjoining(turn)):
                    return turn, variables
        return None

    @property
    def _settings(self) -> Iterator[dict[str, Any]]:
        """The settings that make a difference."""
        message = [user(), assistant(reasoning=REASONING)]
        texts: list[str | None] = []
        for variables in SETTINGS:
            render = self.probes.render(message, **variables)
            text = render.text if render else None
            if text not in texts:
                texts.append(text)
                yield variables

    @property
    def _thoughts(self) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
        """Messages with reasoning, and what of them a turn must show."""
        yield assistant(reasoning=REASONING), ("reasoning", "content")
        if self.written is not None:
            yield assistant(CONTENT, REASONING, [call()]), ("reasoning", "content", "argument")
            yield assistant("", REASONING, [call()]), ("reasoning", "argument")
            yield assistant(CONTENT, REASONING, [call()]), ("reasoning", "argument")

    @property
    def variables(self) -> dict[str, Any]:
        return self.thoughtful[1] if self.thoughtful else {}

    @cached_property
    def written(self) -> Written | None:
        """The calls of a turn, with content before them where the template keeps it."""
        found = self._with_content
        if found is not None and found.turn.has("content"):
            return found
        return self.alone or found

    @cached_property
    def _with_content(self) -> Written | None:
        return read_calls(self.probes, CONTENT)

    @cached_property
    def alone(self) -> Written | None:
        """The calls of a turn without content."""
        return read_calls(self.probes, "")

    @cached_property
    def _thought_alone(self) -> Written | None:
        """The calls of a turn with reasoning before them, and no content."""
        if self.thoughtful is None:
            return None
        found = read_calls(self.probes, "", REASONING, **self.thoughtful[1])
        shown = found.turn.of("reasoning") if found else []
        return found if found and shown and shown[0].start < found.start else None

    @property
    def heads(self) -> Iterator[str]:
        """All that is seen to open a turn."""
        yield self.plain.head
        if self.past is not None and self.past.fields:
            yield self.past.head
        if self.thoughtful is not None:
            yield self.thoughtful[0].head
        if self.alone is not None:
            yield self.alone.turn.past_user(self.alone.turn.text[: self.alone.start])

    # -- header and prompt

    @cached_property
    def prompts(self) -> list[str]:
        """The generation prompt, the template's own choice first, then what other settings make of it."""
        found = []
        for variables in (*SETTINGS, *OTHER_SETTINGS):
            without, after = (self.probes.after_user(asked, self.tools, **variables) for asked in (False, True))
            tail = self.probes.user_tail(self.tools, **variables)
            if after and not (tail and after == without):
                found.append(after[len(common_start(tail, after)) :])
        return [prompt for prompt in found if prompt]

    @cached_property
    def header(self) -> str:
        heads = list(self.heads)
        common = common_start(*self.prompts, *heads)
        if not re.search(r"\w", common):
            common = self._aligned(heads)
        return self._own(common[: self._opened(common)])

    def _aligned(self, heads: list[str]) -> str:
        """The header where the prompt, or a turn, has something before it that the others do not have."""
        prompt = self.prompts[0] if self.prompts else ""
        for marker in markers(prompt):
            texts = [text[text.find(marker) :] for text in (prompt, *heads) if marker in text]
            if len(texts) == len(heads) + 1:
                return common_start(*texts)
        return prompt or self.plain.user_tail.lstrip()

    def _own(self, header: str) -> str:
        """`header` without what ends the user's turn, as it ends the assistant's."""
        ends = [leading_marker(turn.tail) for turn in (self.past, self.plain) if turn is not None]
        first, rest = leading_marker(header), header.lstrip()
        if first and (first in ends or first.startswith("</")):
            after = rest.removeprefix(first).lstrip()
            if leading_marker(after) or not (markers(after) or first in self._user_opening):
                return after
        return header

    def _opened(self, header: str) -> int:
        """Where in `header` begins what opens, or stands for, reasoning: never at its own first marker."""
        starts = [len(header)]
        if self.thoughtful is not None:
            turn = self.thoughtful[0]
            closing = find_mirror(turn.after(turn.of("reasoning")[0]), turn.head)
            starts += [header.rfind(marker) for marker in markers(turn.head) if closing and closing[0] in mirrors(marker)]
        for text in (header, self._past(self.plain.head, header)):
            found = markers(text)
            for marker, after in zip(found, found[1:], strict=False):
                start = text.rindex(marker)
                if after in mirrors(marker) and not text[start:].replace(marker, "").replace(after, "").strip():
                    starts.append(start)
        found = markers(header)
        if found and found[-1].startswith("</") and header.endswith(found[-1]) and not self._paired(found):
            starts.append(header.rindex(found[-1]))
        first = first_marker(header)
        return min(start for start in starts if start > (first.start() if first else 0) or start == len(header))

    @staticmethod
    def _paired(found: list[str]) -> bool:
        """Whether the last marker closes one of those before it."""
        return any(found[-1] in mirrors(marker) for marker in found[:-1])

    @staticmethod
    def _past(text: str, header: str) -> str:
        """`text` from where `header` begins in it."""
        return text[max(text.find(header), 0) :]

    def _body(self, text: str) -> str:
        """What stands behind the header in a text from a turn's start."""
        return text.partition(self.header)[2] if self.header and self.header in text else text

    @cached_property
    def prompt(self) -> str:
        prompt = self.prompts[0] if self.prompts else ""
        if self.header in prompt:
            return prompt[prompt.index(self.header) :]
        return self.header

    @property
    def opened(self) -> list[str]:
        """What the prompts open behind the header."""
        return [
            prompt[prompt.index(self.header) + len(self.header) :] for prompt in self.prompts if self.header in prompt
        ]

    # -- reasoning and content

    @cached_property
    def reasoning(self) -> Section | None:
        if self.thoughtful is not None:
            turn, variables = self.thoughtful
            opening = turn.start_of("reasoning")
            if turn.of("reasoning")[0] == turn.fields[0]:
                opening = self._body(turn.head)
            left, right = self._stripped("reasoning", variables)
            opening = opening or self._body(self.prompt)
            close = self._reasoning_close(turn, opening)
            return Section(opening, close, left, right) if opening or close.strip() else None
        for opened in (*self.opened, *_closed(self._body(self.plain.head))):
            section = _mirrored_section(opened)
            if section is not None and leading_marker(self.plain.tail) not in markers(opened):
                return section
        return self._inline()

    def _reasoning_close(self, turn: Turn, opening: str) -> str:
        literal = turn.after(turn.of("reasoning")[0])
        found = find_mirror(literal, opening) or first_marker(literal)
        if found is None or not _adjoining(turn):
            return literal[: found.end()] if found else literal
        if not literal[found.end() :].strip():
            return literal
        own = common_end(literal[found.end() :], self._body(self.plain.head))
        return literal.removesuffix(own) if own else literal[: found.end()]

    def _inline(self) -> Section | None:
        """Reasoning that is given within content, where the template takes it out or writes it in its own way."""
        inside = REASONING.join(INLINE)
        for turn in self.probes.turns(assistant(inside + CONTENT)):
            written = turn.text[turn.of("content")[0].start : turn.of("content")[-1].end] if turn.of("content") else ""
            if not written or inside + CONTENT in turn.text:
                continue
            if REASONING not in turn.text:
                return Section(*INLINE)
            opening, _, rest = turn.past_user(turn.text).partition(REASONING)
            return Section(self._body(opening), rest.partition(CONTENT)[0])
        return None

    @cached_property
    def no_reasoning(self) -> str | None:
        if self.reasoning is None:
            return None
        head = self._body(self.plain.head).removesuffix(self._content_open)
        empty = self.reasoning.open + self.reasoning.close
        opens = self._body(self.prompt) == self.reasoning.open
        if not head.strip():
            return head if head and self.reasoning.open.startswith(head) else None
        return None if head == self.reasoning.open or (opens and head == empty) else head

    @cached_property
    def content(self) -> Section:
        left, right = self._stripped("content", self.variables)
        if not self._content_ends:
            right = "".join(dict.fromkeys(right + self._blank_end))
        return Section(self._content_open, self._content_close, left, right)

    @cached_property
    def _content_close(self) -> str:
        tail = self.plain.after(self.plain.of("content")[-1])
        found = find_mirror(tail, self._content_open)
        return tail[: found.end()] if found and not tail[: found.start()].strip() else ""

    @property
    def _blank_end(self) -> str:
        """White space that the template writes behind all content, where it writes nothing else there."""
        tail = self.plain.after(self.plain.of("content")[-1])
        return tail if self.plain.last and not tail.strip() else ""

    @cached_property
    def _content_open(self) -> str:
        head = self.plain.start_of("content")
        if self.plain.of("content")[0] == self.plain.fields[0]:
            head = self._body(self.plain.head)
        if self.reasoning is None:
            return head
        if self.thoughtful is None or not _adjoining(self.thoughtful[0]):
            return self._past_reasoning(head)
        turn = self.thoughtful[0]
        before = turn.start_of("content")
        return before.removeprefix(self._reasoning_close(turn, self._body(turn.head)))

    def _past_reasoning(self, head: str) -> str:
        """What opens content in `head`, which may begin with what stands for reasoning."""
        assert self.reasoning is not None
        if head == self.reasoning.open:
            return ""
        found = first_marker(self.reasoning.close)
        _, _, rest = head.rpartition(found[0]) if found and found[0] in head else ("", "", head)
        return rest.lstrip() if markers(rest) else "" if found and found[0] in head else rest

    def _stripped(self, kind: str, variables: dict[str, Any]) -> tuple[str, str]:
        """What is taken off the start and the end of a text of this kind."""
        text = "\n zqtext \n"
        message = assistant(text if kind == "content" else CONTENT, text if kind == "reasoning" else None)
        if kind == "content" and self.thoughtful is not None and self.thoughtful[0].has("content"):
            message["reasoning"] = REASONING
        turn = self._turn(message, kind, **variables)
        if turn is None:
            return "", ""
        field = turn.of(kind)[0]
        left, _, right = turn.text[field.start : field.end].partition("zqtext")
        taken = {"\n ": "", " \n": "", " ": "\n"}
        return taken.get(left, WHITESPACE), taken.get(right, WHITESPACE)

    # -- calls

    @cached_property
    def _tailed(self) -> tuple[Written, str] | None:
        """The calls, and what ends a turn that they end. What stands around a call that stands alone is the call's."""
        if self.written is None:
            return None
        written, end = self._cut(self.written)
        if written.several:
            return written, end
        opening = written.before
        if written.turn.fields[0].start >= written.start:
            opening = self._past_header(written)
        if self.alone is not None and not self.alone.several:
            opening = common_end(opening, self._past_header(self.alone))
        opening = opening if self._channels else opening.lstrip()
        return grown(written, opening, written.after), end

    def _cut(self, written: Written) -> tuple[Written, str]:
        """The calls without what ends their turn: what ends content, or the last marker that closes nothing of theirs."""
        content = written.turn.of("content")
        inside = bool(content) and content[-1].start > written.start
        last = written.turn.tail if inside else written.after
        if self._content_end and self._content_end in last:
            own, end = last.partition(self._content_end)[0], self._content_end
        else:
            found = markers(last) if written.turn.last else []
            opening = "".join(piece.text for piece in written.call.pieces if isinstance(piece, Literal))
            closes = not found or find_mirror(found[-1], opening + written.before) is not None
            own = last if closes else last[: last.rindex(found[-1])]
            end = last[len(own) :]
        return written if inside else replace(written, after=own), end

    def _past_header(self, written: Written) -> str:
        """What stands between the header, or what stands for reasoning, and the calls."""
        turn = written.turn
        text = self._body(turn.past_user(turn.text[: written.start]))
        head = self._body(self.plain.head)
        return text if head == self._content_open else text.removeprefix(head)

    def _calls_end(self, written: Written) -> str:
        """What ends a turn that calls end: as after content, else by the last marker that closes nothing."""
        content = written.turn.of("content")
        last = written.turn.tail if content and content[-1].start > written.start else written.after
        if self._content_end and self._content_end in last:
            return self._content_end
        found = markers(last) if written.turn.last else []
        opening = "".join(piece.text for piece in written.call.pieces if isinstance(piece, Literal)) + written.before
        if not found or find_mirror(found[-1], opening):
            return ""
        return last[last.rindex(found[-1]) :]

    @cached_property
    def calls(self) -> Calls | None:
        if self._tailed is None:
            if turn := self._turn(assistant(calls=[call()]), "name", "argument"):
                raise self._fail("how it writes a call could not be told", turn.text)
            return None
        written, end = self._tailed
        made = complete(self.probes, written, end)
        if made is None:
            raise self._fail("how it writes a call's arguments could not be told", written.turn.text)
        if self._channels:
            return Calls(made, several=written.several)
        alone = self._alone_before()
        before = written.before
        content = written.turn.of("content")
        if content and content[0].start < written.start:
            before = before.removeprefix(self._content_close) if self._content_open else before
            opening = common_end(before, alone).lstrip()
        else:
            opening, before = alone.lstrip(), alone
        if alone.removesuffix(opening).strip():
            opening = before = alone = alone.lstrip()
        return Calls(
            call=made,
            open=opening,
            separator=written.separator,
            close=written.after,
            lead=before.removesuffix(opening),
            lead_alone=alone.removesuffix(opening),
            several=written.several,
        )

    def _alone_before(self) -> str:
        """What stands between the header, or what stands for reasoning, and calls without content."""
        if self.alone is None:
            return self.written.before if self.written else ""
        thought = self._thought_alone
        if thought is not None and self.reasoning is not None:
            after = thought.turn.text[thought.turn.of("reasoning")[0].end : thought.start]
            if not thought.several and self._tailed and isinstance(first := self._tailed[0].call.pieces[0], Literal):
                after = after.removesuffix(first.text)
            if after.startswith(self.reasoning.close):
                return after.removeprefix(self.reasoning.close)
        text = self._past_header(self.alone)
        if self.alone.several:
            return text
        first = self._tailed[0].call.pieces[0] if self._tailed else None
        return text.removesuffix(first.text) if isinstance(first, Literal) else text

    @cached_property
    def order(self) -> tuple[str, ...]:
        parts = ("reasoning", "content", "calls")
        found = self._with_content
        message = assistant(CONTENT, REASONING, [call()])
        turn = self._turn(message, "reasoning", "content", "name", **self.variables) or (found.turn if found else None)
        shown = turn.order() if turn is not None else ()
        if self.reasoning is not None and self._body(self.prompt):
            shown = ("reasoning", *(part for part in shown if part != "reasoning"))
        return tuple(sorted(parts, key=lambda part: shown.index(part) if part in shown else parts.index(part)))

    # -- ends

    @cached_property
    def _content_ends(self) -> tuple[str, ...]:
        """What ends a turn of content: the last one's end, and another where more turns follow."""
        tail = self.plain.after(self.plain.of("content")[-1]).removeprefix(self._content_close)
        tail = tail if self.plain.last else ""
        if self.past is None or not self.past.of("content"):
            return (tail,) if tail.strip() else ()
        following = self.past.tail.removeprefix(self._content_close)
        if tail.strip() and following.startswith(tail):
            return (tail,)
        shared = closing_part(common_start(tail, following))
        ends = (shared, shared) if shared.strip() else (tail, self._end_before(following))
        return unique(end for end in ends if end.strip())

    def _end_before(self, following: str) -> str:
        """What ends a turn in the text from it to the next user's, by what opens other turns."""
        ended = common_start(following, self.plain.user_tail + self.plain.head)
        if len(markers(ended)) > 1:
            return closing_part(ended)
        return following[: len(following) - len(common_end(self._user_opening, following))]

    @property
    def _content_end(self) -> str:
        return next(iter(self._content_ends), "")

    @cached_property
    def _user_opening(self) -> str:
        render = self.probes.render([user()], self.tools)
        start = next((stretch.start for stretch in render.of_message(0)), 0) if render else 0
        return render.text[:start] if render else ""

    @cached_property
    def ends(self) -> tuple[str, ...]:
        found = unique((self._content_end, self._tailed[1] if self._tailed else "", *self._content_ends))
        return tuple(end for end in found if not self._channels or end.strip() != self._channels.end)

    @cached_property
    def next_turns(self) -> tuple[str, ...]:
        """What opens the turns of the user, of tools and of the system, and the assistant's own."""
        made = [call()]
        texts = [
            self._following([user(), assistant(), user(NEXT)], 1, self.tools),
            self._following([user(), assistant(calls=made), *results(made)], 1, definitions()),
            self._following([user(), assistant(), {"role": "system", "content": SYSTEM}], 1, self.tools),
            self.header,
        ]
        return unique(_opening_marker(text) for text in texts if text)

    def _following(self, messages: list[dict[str, Any]], index: int, tools: Any = None) -> str | None:
        """What stands between the end of the turn at `index` and the next message's text."""
        turn = self.probes.turn(messages[index], messages[index + 1 :], tools)
        if turn is None or turn.last:
            return None
        tail = turn.tail.removeprefix(self._content_close)
        if turn.calls() and self.calls:
            last = self.calls.call.pieces[-1]
            closing = (last.text if isinstance(last, Literal) else "") + self.calls.close
            tail = tail.rpartition(closing)[2] if closing else tail
        for end in (*self.ends, self._channels.end if self._channels else ""):
            tail = tail.lstrip().removeprefix(end.strip())
        return tail

    # -- channels

    @cached_property
    def _channels(self) -> Channels | None:
        """The channels, where reasoning and content are messages that a word tells apart, without what calls show."""
        if self.thoughtful is None or not _adjoining(self.thoughtful[0]):
            return None
        turn = self.thoughtful[0]
        fields = turn.of("reasoning")[0], turn.of("content")[0]
        heads = [_CHANNEL.search(turn.before(field)) for field in fields]
        if not heads[0] or not heads[1]:
            return None
        (channel, reasoning, message), (other, content, last) = heads[0].groups(), heads[1].groups()
        start = first_marker(turn.head)
        end = first_marker(turn.after(fields[0]))
        if (channel, message) != (other, last) or reasoning == content or start is None or end is None:
            return None
        role = turn.head[start.end() : turn.head.index(channel)]
        return Channels(start[0], channel, message, end[0], reasoning, content, "", "", role=role)

    @property
    def channels(self) -> Channels | None:
        return self._channels and self._calling(self._channels)

    def _calling(self, channels: Channels) -> Channels:
        """`channels` with what its calls say in their headers."""
        if self._tailed is None:
            return channels
        written, end = self._tailed
        literals = [piece.text if isinstance(piece, Literal) else _GAP for piece in written.call.pieces]
        header, _, _ = "".join(literals).partition(channels.message)
        before, _, after = header.partition(channels.channel)
        word = re.match(r"\w*", after)
        assert word is not None
        recipient, _, kind = (before if _GAP in before else after[word.end() :]).partition(_GAP)
        kind = after[word.end() :] if _GAP in before else kind
        return replace(channels, calls=word[0], recipient=recipient, call_type=kind, call_end=end)


def _adjoining(turn: Turn) -> bool:
    """Whether content stands right behind reasoning."""
    kinds = [field.kind for field in turn.fields]
    return ("reasoning", "content") in zip(kinds, kinds[1:], strict=False)


def _opening_marker(text: str) -> str:
    return leading_marker(text) or ""


def _mirrored_section(opened: str) -> Section | None:
    """Reasoning that only the prompt shows: `<think>\\n`, `<think>\\n\\n</think>\\n\\n` or `</think>`."""
    found = first_marker(opened)
    if found is None:
        return None
    if found[0].startswith("</"):
        return Section(found[0].replace("/", "", 1), opened)
    closing = find_mirror(opened, opened)
    if closing is None:
        space, mirror = opened[found.end() :], mirrored(found[0])
        return Section(opened, f"{space}{mirror}{space}") if mirror and not space.strip() else None
    inner = opened[found.end() : closing.start()]
    half = len(inner) if inner.strip() else (len(inner) + 1) // 2
    return Section(opened[: found.end()] + inner[:half], inner[half:] + opened[closing.start() :])


def _closed(head: str) -> list[str]:
    """What stands for reasoning at the start of `head`: a marker and its mirror, with nothing but space between."""
    found = first_marker(head)
    closing = find_mirror(head, found[0]) if found else None
    if found is None or closing is None or (head[: found.start()] + head[found.end() : closing.start()]).strip():
        return []
    rest = head[closing.end() :]
    return [head[: len(head) - len(rest.lstrip())]]
