"""What of a turn its prompt has already written, as all who read or write the rest of it see it."""

from __future__ import annotations

from .format import WHITESPACE, TurnFormat
from .grammar import tokens


def begun(turn: TurnFormat, prompt: str) -> str:
    """What stands in the prompt behind the last turn's header; "" where that turn is over.

    Without the header, what stands from a marker of reasoning on.
    """
    place = prompt.rfind(turn.header) if turn.header else -1
    if place >= 0:
        said = prompt[place + len(turn.header) :]
        over = [mark for text in (*turn.ends, *turn.next_turns) for mark in tokens(text)[:1]]
        return "" if any(mark in said for mark in over) else said
    core = turn.header.strip(WHITESPACE)
    place = prompt.rfind(core) if core else -1
    if place >= 0:
        return prompt[place + len(core) :].lstrip(WHITESPACE)
    section = turn.reasoning
    marks = [mark for text in (section.open, section.close) for mark in tokens(text)[:1]] if section else []
    places = [prompt.rfind(mark) for mark in marks]
    return prompt[min((place for place in places if place >= 0), default=len(prompt)) :]
