"""Plants a word of its own in every text field of a conversation, and looks where a traced render says it came from."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

from chatcodec.template.traced import TracedText

WORD = re.compile(r"zq\d{4}x", re.IGNORECASE)
FIXED = frozenset(("role", "type", "id", "tool_call_id"))
"""Fields whose values are names of the protocol, or refer to one another."""


class Planted:
    """`variables` with words planted; `paths` tells for each word where it stands."""

    def __init__(self, variables: dict[str, Any]) -> None:
        self.paths: dict[str, str] = {}
        self.in_json: set[str] = set()
        """Words inside a field that is JSON text: the field has written them, unless the template has parsed it."""
        self.variables = copy.deepcopy(variables)
        for name in ("messages", "tools"):
            if self.variables.get(name):
                self.variables[name] = self._plant(self.variables[name], name, protocol=True)

    def _word(self, path: str) -> str:
        word = f"zq{len(self.paths):04d}x"
        self.paths[word] = path
        return word

    def _plant(self, value: Any, path: str, *, protocol: bool) -> Any:
        if isinstance(value, list):
            return [self._plant(item, f"{path}[{index}]", protocol=protocol) for index, item in enumerate(value)]
        if isinstance(value, dict):
            return {name: self._field(name, item, f"{path}.{name}", protocol) for name, item in value.items()}
        if isinstance(value, str):
            word = self._word(path)
            return f"{word}{value}" if value.isidentifier() else f"{value[:2]}{word}{value[2:]}"
        return value

    def _field(self, name: str, value: Any, path: str, protocol: bool) -> Any:
        if protocol and name in FIXED:
            return value
        if name == "arguments" and isinstance(value, str):
            before = set(self.paths)
            text = json.dumps(self._plant(json.loads(value), path, protocol=False), ensure_ascii=False)
            self.in_json |= set(self.paths) - before
            return text
        if name in ("arguments", "properties"):
            return {
                f"{key}{self._word(f'{path}.{key}')}": self._plant(item, f"{path}.{key}", protocol=False)
                for key, item in value.items()
            }
        if name == "type" and isinstance(value, str):
            return value
        return self._plant(value, path, protocol=protocol)


def misplaced(text: TracedText, planted: Planted) -> Iterator[str]:
    """A line for each planted word in `text` that is not under its own path, and for each fault in the spans."""
    spans = text.spans
    position = 0
    for start, end, _ in spans:
        if start != position or end <= start:
            yield f"a gap at {position}"
        position = end
    if position != len(text):
        yield "the spans end before the text"
    for match in WORD.finditer(text):
        word = match[0].lower()
        wanted = _plain(planted.paths[word])
        owners = {_plain(path) for start, end, path in spans if start < match.end() and end > match.start()}
        if word in planted.in_json and len(owners) == 1 and (field := owners.copy().pop()):
            wanted = field if wanted.startswith(field) and field.count(".arguments") else wanted
        if owners != {wanted}:
            yield f"{match[0]} at {match.start()} is {wanted}, not {owners}"


def _plain(path: str | None) -> str:
    """A path without the words planted in its keys."""
    return WORD.sub("", path or "the template")
