"""Whether what a prompt was made of can be a part of its control tokens.

In: the input as plain data, the template's source, and the texts of control tokens. Out: yes or no, without a render.
What holds: names and words that are the same in all conversations count as the template's own writing (`is_common`),
since templates make control tokens of them: `<|user|>` of "user".
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple

ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function", "observation"))
"""Roles that count as the template's own writing; "observation" is what a family of models calls a tool's result."""


class Place(NamedTuple):
    """A place in OpenAI's shapes: the names of an object there, words that stand under some, and the places below."""

    names: frozenset[str]
    words: Mapping[str, frozenset[str]]
    below: Mapping[str, Place]


def _place(names: str, words: Mapping[str, str] | None = None, below: Mapping[str, Place] | None = None) -> Place:
    return Place(
        frozenset(names.split()),
        {name: frozenset(listed.split()) for name, listed in (words or {}).items()},
        below or {},
    )


def _places() -> Mapping[str, Place]:
    function = _place("name arguments")
    call = _place("id index type function name arguments", {"type": "function"}, {"function": function})
    part = _place("type text", {"type": "text"})
    message = _place(
        "role name content refusal reasoning_content reasoning thinking tool_calls tool_call_id function_call",
        {"role": " ".join(ROLES)},
        {"content": part, "tool_calls": call, "function_call": function},
    )
    schema = _place("type properties required", {"type": "object"})
    declared = _place("name description parameters strict", None, {"parameters": schema})
    tool = _place(
        "type function name description parameters",
        {"type": "function"},
        {"function": declared, "parameters": schema},
    )
    return {"messages": message, "tools": tool}


_PLACES = _places()
_NO_PLACE = _place("")
_ENTITY = re.compile("&[#a-z]")  # of escapes, in HTML and in JSON, a template may make what they stand for
_UNSEEN = re.compile(
    r"""\\[xuUN0-7]|%c|:c}|\b(?:decode|translate)\b|\bstrftime_now\(\s*(?![\s'"])|\breplace\([^,()]*,\s*(?![\s'"])"""
)
"""How a template may write texts that do not stand in its source."""
_REWRITES = re.compile(r"\b(?:replace|reverse|sort|striptags)\b|\[\s*:\s*:\s*-")
"""How it may write texts that do not stand in its input."""
_LONGEST = 100
"""Control tokens longer than this are not looked for."""


def is_common(keys: Sequence[Any], text: str, controls: Container[str], *, is_name: bool) -> bool:
    """Whether a text that stands under `keys` in the input counts as the template's own writing: a special token given
    by name (`bos_token`), if it is one of `controls`, and the names and words that are the same in all conversations.
    Templates make control tokens of these (`<|user|>`). `is_name`: it is itself a name, the last of the keys."""
    if len(keys) == 1:
        return _is_token(keys[0], text, controls)
    place = _PLACES.get(keys[0])
    for key in keys[1:-1]:
        if place is not None and isinstance(key, str):
            place = place.below.get(key)
    if place is None:
        return False
    return text in (place.names if is_name else place.words.get(keys[-1], ()))


def innocent(given: Mapping[str, Any], template: str, controls: frozenset[str]) -> bool:
    """Whether no part of one of these control tokens can be the doing of what a template was given: the messages, the
    tools and the template variables, by name.

    A part that the input wrote holds the token's first character or its last; or the template writes the token's
    beginning and its end apart (`'<|' + x + '|>'`), and then the part is what is missing between them.
    """
    edges, middles = _looks(template, controls)
    if middles is None:
        return False
    texts: list[str] = []
    for name, value in given.items():
        if not (isinstance(value, str) and _is_token(name, value, controls)):
            _collect(value, _PLACES.get(name), texts)
    text = "\n".join(texts).casefold()
    if any(edge in text for edge in edges) or ("&" in text and _ENTITY.search(text)):
        return False
    if any(middle in text for middle in middles):
        return False
    return not middles or not _is_middle_of_two(middles, [line.strip() for line in text.split("\n")])


def _is_middle_of_two(middles: frozenset[str], texts: list[str]) -> bool:
    """Whether two of the texts, side by side, may be a middle together."""
    known = set(texts)
    rests = (middle[place:] for middle in middles for place in range(1, len(middle)) if middle[:place] in known)
    return any(text.startswith(rest) for rest in rests for text in texts)


def _is_token(name: str, value: str, controls: Container[str]) -> bool:
    return name.endswith("_token") and value in controls


def _collect(value: Any, place: Place | None, texts: list[str]) -> None:
    """All that may be written of a value, names too, save what is the same in all conversations."""
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, dict):
        names, words, below = place or _NO_PLACE
        for name, item in value.items():
            if name not in names:
                texts.append(name)
            if not isinstance(item, str):
                _collect(item, below.get(name), texts)
            elif name not in words or item not in words[name]:
                texts.append(item)
    elif isinstance(value, list):
        for item in value:
            _collect(item, place, texts)
    elif value is None:
        texts += ("none", "null")
    else:
        texts.append(str(value))


@lru_cache(256)
def _looks(template: str, controls: frozenset[str]) -> tuple[frozenset[str], frozenset[str] | None]:
    """How a part that the input wrote looks, in lower case: characters of which it holds one, and texts of which it
    holds one as a whole. None for these where there is no telling."""
    texts = [text.casefold() for text in controls]
    edges = frozenset((*(text[place] for text in texts for place in (0, -1)), "\\u"))
    if max(map(len, controls), default=0) > _LONGEST or _UNSEEN.search(template):
        return edges, None
    middles = frozenset(middle for text in texts for middle in _middles(template.casefold(), text))
    return edges, None if middles and _REWRITES.search(template) else middles


def _middles(template: str, control: str) -> Iterator[str]:
    """What is missing of a control token between texts of the template that begin it and such as end it."""
    whole = range(len(control) + 1)
    starts = {place for place in whole[1:-1] if _stands(template, control[:place], behind=True)}
    ends = {place for place in whole[1:-1] if starts and _stands(template, control[place:], before=True)}
    if not ends:
        return iter(())
    for start, end in combinations(whole[1:-1], 2):
        if _stands(template, control[start:end], before=True, behind=True):
            starts.add(end)
            ends.add(start)
    return (control[start:end] for start in starts for end in ends if start < end)


def _stands(template: str, text: str, *, before: bool = False, behind: bool = False) -> bool:
    """Whether a text that the template writes may begin so (`before`: at a quote, or behind what is put in), or end."""
    if text not in template:
        return False
    pattern = re.escape(text)
    if before:
        pattern = r"(?:['\"}]|%(?:\(\w*\))?\w|\A)\s*" + pattern
    if behind:
        pattern += r"\s*(?:['\"{%]|\Z)"
    return re.search(pattern, template) is not None
