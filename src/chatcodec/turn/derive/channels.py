"""Reads off a turn of messages to several channels: reasoning and content differ only by a word between markers."""

from __future__ import annotations

import re
from dataclasses import replace

from ..format import Channels, Literal
from .calls import Written
from .markers import first_marker
from .seen import Seen

_CHANNEL = re.compile(r"(<[^<>]+>)(\w+)(<[^<>]+>)\Z")
_WORD = re.compile(r"\w*")
_GAP = "\0"
"""Stands for a field in a call's header."""


def find_channels(seen: Seen) -> Channels | None:
    """The channels, without what calls show of them; None where there are none."""
    if seen.thought is None or not seen.thought.spoken:
        return None
    turn = seen.thought.turn
    fields = turn.of("reasoning")[0], turn.of("content")[0]
    thinking, talking = (_CHANNEL.search(turn.before(field)) for field in fields)
    start, end = first_marker(turn.head), first_marker(turn.after(fields[0]))
    if thinking is None or talking is None or start is None or end is None:
        return None
    (channel, reasoning, message), (other, content, last) = thinking.groups(), talking.groups()
    if (channel, message) != (other, last) or reasoning == content:
        return None
    role = turn.head[start.end() : turn.head.index(channel)]
    return Channels(start[0], channel, message, end[0], reasoning, content, "", "", role=role)


def with_calls(channels: Channels, written: Written, end: str) -> Channels:
    """`channels` with what calls say in their headers: the recipient before the channel's word, or behind it."""
    literals = [piece.text if isinstance(piece, Literal) else _GAP for piece in written.call.pieces]
    header = "".join(literals).partition(channels.message)[0]
    before, _, after = header.partition(channels.channel)
    word = _WORD.match(after)
    assert word is not None
    rest = after[word.end() :]
    if _GAP in before:
        recipient, kind = before.partition(_GAP)[0], rest
    else:
        recipient, _, kind = rest.partition(_GAP)
    return replace(channels, calls=word[0], recipient=recipient, call_type=kind, call_end=end)
