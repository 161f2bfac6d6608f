"""Reads a template's turn format off its renders.

`derive` renders some small conversations, in which each text is a word of its own, and compares where the words stand.
It knows nothing of the template but these renders, and no format by its name. The same template always gives the same
format. `probes` renders, `seen` picks the turns to look at, and each part of the format is read by a module of
its own.
"""

from __future__ import annotations

from ..format import Section, TurnFormat
from .calling import Calling
from .channels import find_channels, with_calls
from .ends import Ends
from .markers import unique
from .opening import Opening
from .probes import Probes, Trace
from .sections import Sections
from .seen import Seen


def derive(trace: Trace, *, template: str = "chat_template") -> TurnFormat:
    """The format in which a template writes the assistant's turn.

    `trace(messages, tools, add_generation_prompt, **variables)` renders a conversation, traced, and raises
    `TemplateError` or `UnsupportedInput` for one that it cannot. Raises `FormatNotDerived` where the renders do not
    show how a turn is written.
    """
    seen = Seen(Probes(trace), template)
    opening = Opening(seen)
    sections = Sections(seen, opening)
    ends = Ends(seen, sections)
    channels = find_channels(seen)
    calling = Calling(seen, opening, sections, ends, channels=channels is not None)
    found = unique((ends.first, calling.end, *ends.after_content))
    if channels is None:
        return TurnFormat(
            header=opening.header,
            prompt=opening.prompt,
            ends=found,
            reasoning=sections.reasoning,
            no_reasoning=sections.no_reasoning,
            content=sections.content(ends.after_content),
            calls=calling.calls,
            order=calling.order,
            next_turns=ends.next_turns(opening.header, calling.calls, found),
        )
    if calling.written is not None:
        channels = with_calls(channels, calling.written, calling.end)
    return TurnFormat(
        header=opening.header,
        prompt=opening.prompt,
        ends=tuple(end for end in found if end.strip() != channels.end),
        content=Section(),
        calls=calling.calls,
        order=calling.order,
        next_turns=ends.next_turns(opening.header, calling.calls, (*found, channels.end)),
        channels=channels,
    )
