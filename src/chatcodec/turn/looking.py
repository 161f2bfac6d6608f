"""What the readers of a turn's parts look for alike: markers with their white space, and the turn's end."""

from __future__ import annotations

from .format import WHITESPACE
from .grammar import Edge, is_certain
from .state import Turn
from .stream import CUT, NO, Reading

CONTROL_TOKEN = "<|"
"""How a control token begins, in the writing that most vocabularies share."""
LONGEST_TOKEN = 40
MOST_END_TOKENS = 4


class Looking:
    """Looks at a turn's output from where its reading stands."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.stream = turn.stream
        self.grammar = turn.grammar

    def take(self, edge: Edge) -> Reading[bool]:
        """Read a marker and the white space that the template writes behind it."""
        if not edge.tokens:
            return False
        end = yield from self.stream.look(edge.tokens)
        if end < 0:
            return False
        self.stream.position += end
        yield from self.stream.skip_exact(edge.trail)
        return True

    def at_end(self) -> Reading[bool]:
        """Whether the turn ends here; the marker that ends it is then read."""
        stream = self.stream
        for edge in self.grammar.ends:
            end = (yield from stream.look(edge.tokens)) if edge.tokens else NO
            if end < 0:
                continue
            certain = is_certain(edge.tokens[0])
            if certain or (yield from self.ends_output(end)):
                self.turn.ended_by_marker = True
                stream.position += end
                return True
        for turn in self.grammar.next_turns:
            end = yield from stream.look(turn)
            if end >= 0 and (is_certain(turn[0]) or (yield from stream.look(("\0",), end)) == CUT):
                self.turn.ended_by_marker = True
                return True
        return False

    def ends_here(self, at: int) -> Reading[bool]:
        """Whether the output ends at `at`, or what ends a turn stands there."""
        for edge in self.grammar.ends:
            if edge.tokens and (yield from self.stream.look(edge.tokens, at)) != NO:
                return True
        return (yield from self.ends_output(at))

    def ends_output(self, at: int) -> Reading[bool]:
        """Whether the output ends at `at`, perhaps after more control tokens, or another turn begins there."""
        stream = self.stream
        for turn in self.grammar.next_turns:
            if (yield from stream.look(turn, at)) != NO:
                return True
        for _ in range(MOST_END_TOKENS):
            if (yield from stream.look(("\0",), at)) == CUT:
                return True
            at = yield from self.after_token(at)
            if at < 0:
                return at == CUT
        return False

    def after_token(self, at: int) -> Reading[int]:
        """Where a word in angle brackets that stands at `at` ends."""
        stream = self.stream
        at = yield from stream.look(("<",), at)
        if at < 0:
            return at
        for end in range(at, at + LONGEST_TOKEN):
            if not (yield from stream.need(end + 1)):
                return CUT
            character = stream.text[stream.position + end]
            if character == ">":
                return end + 1 if end > at else NO
            if character in WHITESPACE or character == "<":
                return NO
        return NO

    def control_token(self) -> Reading[int]:
        """Where a control token that stands here ends."""
        stream = self.stream
        if (yield from stream.look((CONTROL_TOKEN,))) < 0:
            return NO
        for at in range(len(CONTROL_TOKEN), LONGEST_TOKEN):
            if not (yield from stream.need(at + 2)):
                return CUT
            if stream.text.startswith("|>", stream.position + at):
                return at + 2 if at > len(CONTROL_TOKEN) else NO
            if not (stream.text[stream.position + at].isalnum() or stream.text[stream.position + at] == "_"):
                return NO
        return NO

    def stands(self, marker: str, at: int) -> Reading[bool]:
        """Whether `marker` stands just at `at`."""
        stream = self.stream
        if stream.text[stream.position + at] != marker[0]:
            return False
        return (yield from stream.look((marker,), at)) >= 0
