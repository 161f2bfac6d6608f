"""`TurnFormat`: how an assistant's turn is written, as plain data.

It is read off a template (`derive`), written by hand, or read from a file (`document`), and it is used by the decoder,
by `compose`, and to be explained to people. A use has a module of its own; nothing here does anything.

A turn, in the text after the generation prompt, is reasoning, content and calls, each in its place (`order`), then an
end. Literals are written exactly as the template writes them, white space included; what a reader makes of departures
from that is the decoder's matter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

WHITESPACE = " \t\n\r\f\v"


@dataclass(frozen=True, slots=True)
class Literal:
    """Text of the format's own."""

    text: str


@dataclass(frozen=True, slots=True)
class Name:
    """The function's name; inside JSON it is escaped as JSON."""


@dataclass(frozen=True, slots=True)
class CallId:
    """The call's id. With `names` it holds the name, which is written nowhere else: `functions.NAME:INDEX`."""

    names: bool = False


@dataclass(frozen=True, slots=True)
class Index:
    """The call's place in its turn, counted from `first`."""

    first: int = 0


@dataclass(frozen=True, slots=True)
class JsonArguments:
    """The arguments as one JSON object: `{"city": "Paris", "days": 2}`."""

    comma: str = ", "
    colon: str = ": "
    ascii: bool = False
    """Characters beyond ASCII are written as `\\uXXXX`."""
    encoded: bool = False
    """The object is written as a JSON string that holds JSON."""
    indent: int | None = None


@dataclass(frozen=True, slots=True)
class TaggedArguments:
    """Each argument in tags of its own: `<parameter=city>\\nParis\\n</parameter>`.

    One argument is `open`, its name, `middle`, its value, `close`; `separator` stands between two. A string's value is
    written as `strings` says, any other as `others` says.
    """

    open: str
    middle: str
    close: str
    separator: str = ""
    strings: str = "raw"
    """"raw"; "json" and "ascii" (quoted, as JSON); "python" (as `repr` quotes)."""
    others: str = "json"
    """"json", "ascii" (JSON, ASCII only), "python" (`True`, `None`, `{'a': 1}`), or "mixed" (lists and objects as JSON,
    the rest as Python)."""
    kinds: tuple[tuple[str, str], ...] = ()
    """Where what stands in the middle tells the value's type: pairs of a JSON type (`string`, `integer`, `number`,
    `boolean`, `null`, `array`, `object`) and the middle of its values. `middle` is then that of a string."""
    named_close: str | None = None
    """Where the close repeats the name (`</city>`): `close` is what stands before the name, this what stands after."""
    cdata: bool = False
    """A string that holds `<`, `&` or a newline stands in `<![CDATA[` and `]]>`."""
    escaped_names: bool = False
    """The name is written with HTML's escapes (`&amp;`)."""


@dataclass(frozen=True, slots=True)
class KeywordArguments:
    """The arguments as in a call in Python: `city="Paris", days=2`, without the parentheses."""

    separator: str = ", "
    equals: str = "="
    strings: str = "json"
    """"json", "ascii", "python", "bare" (`"` around the text, nothing escaped), "single" (the same with `'`), or
    "raw" (the text alone)."""
    others: str = "json"
    """As in `TaggedArguments`."""


@dataclass(frozen=True, slots=True)
class BareArguments:
    """One object with bare keys and strings between marks of their own: `city:<|"|>Paris<|"|>,days:2`, without its
    braces; objects in it have theirs."""

    quote: str
    comma: str = ","
    colon: str = ":"


Payload: TypeAlias = JsonArguments | TaggedArguments | KeywordArguments | BareArguments


@dataclass(frozen=True, slots=True)
class Arguments:
    """The call's arguments."""

    payload: Payload


Piece: TypeAlias = Literal | Name | CallId | Index | Arguments


@dataclass(frozen=True, slots=True)
class Call:
    """One call: `pieces` are its writing, from its first marker to its last.

    Where `name_path` is given the call holds one JSON object, whose `{` is in a literal; the paths are where its name,
    arguments and id stand in that object, and its keys may come in any order.
    """

    pieces: tuple[Piece, ...]
    name_path: tuple[str, ...] = ()
    arguments_path: tuple[str, ...] = ()
    id_path: tuple[str, ...] = ()
    no_arguments: tuple[Piece, ...] | None = None
    """The writing of a call without arguments, where it is another."""


@dataclass(frozen=True, slots=True)
class Calls:
    """All calls of a turn. `open` and `close` stand around them, `separator` between two."""

    call: Call
    open: str = ""
    separator: str = ""
    close: str = ""
    lead: str = ""
    """What the template writes between content and the calls."""
    lead_alone: str = ""
    """The same, where the content is empty."""
    several: bool = True
    """More than one call may stand in a turn."""


@dataclass(frozen=True, slots=True)
class Section:
    """Reasoning or content: a text between `open` and `close`, which are not written around no content."""

    open: str = ""
    close: str = ""
    strip_left: str = ""
    """Characters that the template takes off the text's start: no text of a turn starts with them."""
    strip_right: str = ""


@dataclass(frozen=True, slots=True)
class Channels:
    """A turn of messages to several channels (OpenAI's harmony), each `start`, header, `message`, text, and an end.

    The header is a role, perhaps ` to=` a recipient, and `channel` with the channel's name and perhaps a content type.
    """

    start: str
    channel: str
    message: str
    end: str
    """What ends a message within a turn; `TurnFormat.ends` end the turn, and a message."""
    reasoning: str
    content: str
    calls: str
    recipient: str
    """What stands before a function's name in a header: ` to=functions.`."""
    call_type: str = ""
    """What a call's header says after its channel: ` json`."""
    constrain: str = "<|constrain|>"
    call_end: str = ""
    role: str = "assistant"


@dataclass(frozen=True, slots=True)
class TurnFormat:
    """The assistant's turn. See the module for what holds of it."""

    header: str
    """What opens an assistant's turn: `<|im_start|>assistant\\n`."""
    prompt: str
    """The generation prompt: the header, and what it opens for the model (`<think>\\n`)."""
    ends: tuple[str, ...]
    """What ends a turn: the first as the template writes it, up to the next turn; with none, only the engine's stop."""
    reasoning: Section | None = None
    no_reasoning: str | None = None
    """What stands for reasoning after the header in a turn that has none (`<think>\\n\\n</think>\\n\\n`)."""
    content: Section = field(default_factory=Section)
    calls: Calls | None = None
    order: tuple[str, ...] = ("reasoning", "content", "calls")
    next_turns: tuple[str, ...] = ()
    """What opens other roles' turns: a turn is over where one of these ends the output, or comes as a token's id."""
    channels: Channels | None = None
