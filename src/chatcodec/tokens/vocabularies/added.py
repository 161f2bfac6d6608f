"""A tokenizer.json as data: which of its added tokens are control tokens, and the same vocabulary without them.

In: the parsed file. Out: new definitions; what comes in is not changed.
"""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import SourceError
from ..tokenizer import Control

_SYMBOLS = frozenset(string.punctuation + "｜▁")
_ELEMENT = re.compile(
    "</?(?:table|caption|thead|tbody|tfoot|tr|th|td|h[1-6]|blockquote|strong|em|b|i|u|s|sub|sup|code)>"
)
BYTE_TOKENS = frozenset(f"<0x{byte:02X}>" for byte in range(256))


@dataclass(frozen=True, slots=True)
class Plain:
    """A vocabulary that takes the spelling of a control token for text.

    `controls` are the added tokens that were taken out of `definition`, by text; `names` is what stands there in
    their place, something that no text holds. A control token that is one of the model's own words has no such name.
    `guard` is one more added token: what is encoded behind it does not stand at the beginning.
    """

    definition: dict[str, Any]
    controls: Mapping[str, Mapping[str, Any]]
    names: Mapping[str, str]
    guard: str


def is_control(text: str, *, special: bool) -> bool:
    """Whether an added token is one that no text may write. Those that are mere text may be written: runs of white
    space, letters, digits and symbols, tags of HTML elements."""
    if special:
        return True
    if all(letter == "▁" or letter.isspace() for letter in text):
        return False
    return not (_ELEMENT.fullmatch(text) or _SYMBOLS.isdisjoint(text))


def controls_among(entries: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The control tokens among the added tokens, by text. Of a tag its counterpart tells: `</s>` is no mere text where
    `<s>` is special, whatever its own flag says."""
    listed = {entry["content"]: entry for entry in entries}
    special = {text for text, entry in listed.items() if entry.get("special")}
    special |= {text.replace("<", "</", 1) if text[1:2] != "/" else text.replace("</", "<", 1) for text in special}
    return {text: entry for text, entry in listed.items() if is_control(text, special=text in special)}


def control(number: int, entry: Mapping[str, Any]) -> Control:
    return Control(
        id=number,
        text=entry["content"],
        special=bool(entry.get("special")),
        strip_left=bool(entry.get("lstrip")),
        strip_right=bool(entry.get("rstrip")),
        whole_word=bool(entry.get("single_word")),
    )


def added_tokens(definition: Mapping[str, Any], *, name: str = "tokenizer.json") -> list[dict[str, Any]]:
    entries = definition.get("added_tokens") or []
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and isinstance(entry.get("content"), str) for entry in entries
    ):
        raise SourceError(f"{name}: added_tokens is not a list of objects with their 'content'")
    return [entry for entry in entries if entry["content"]]


def words(definition: Mapping[str, Any]) -> dict[str, int]:
    """The model's own words and their ids, without what was added to them."""
    vocabulary = _model(definition).get("vocab")
    if isinstance(vocabulary, dict):
        return vocabulary
    if isinstance(vocabulary, list) and all(isinstance(piece, list) and piece for piece in vocabulary):
        return {piece[0]: number for number, piece in enumerate(vocabulary)}
    raise ValueError("the model's vocab is neither an object nor a list of pieces")


def without_controls(definition: Mapping[str, Any], *, name: str = "tokenizer.json") -> Plain:
    entries = added_tokens(definition, name=name)
    controls = controls_among(entries)
    own = controls.keys() & words(definition).keys()
    fixed = _reachable(_model(definition), own)
    key = secrets.token_hex(16)
    names = {text: f"<{key}-{number}>" for number, text in enumerate(controls) if text not in fixed}
    guard = f"<{key}>"
    kept = [
        {**entry, "content": names[text], "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
        if (text := entry["content"]) in names
        else entry
        for entry in entries
        if entry["content"] not in fixed
    ]
    last = {"id": 0, "content": guard, "special": True, "normalized": False}
    last |= {"single_word": False, "lstrip": False, "rstrip": False}
    renamed = {text: name for text, name in names.items() if text in own}
    # The post-processor adds tokens and trims places; truncation and padding change the length.
    silenced = {"post_processor": None, "truncation": None, "padding": None}
    model = _renamed(_model(definition), renamed)
    return Plain({**definition, **silenced, "added_tokens": [*kept, last], "model": model}, controls, names, guard)


def _model(definition: Mapping[str, Any]) -> dict[str, Any]:
    model = definition.get("model")
    if not isinstance(model, dict):
        raise ValueError("it has no model")
    return model


def _reachable(model: Mapping[str, Any], texts: Iterable[str]) -> frozenset[str]:
    """Those of the model's words that it needs to spell other text: they cannot be taken from it."""
    wanted = set(texts)
    fixed = {text for text in wanted if len(text) == 1 or (text in BYTE_TOKENS and model.get("byte_fallback"))}
    merges = model.get("merges")
    prefix = len(model.get("continuing_subword_prefix") or "")
    for merge in merges if isinstance(merges, list) and wanted else ():
        left, _, right = merge.partition(" ") if isinstance(merge, str) else (merge[0], "", merge[1])
        for text in (left, right, left + right[prefix:]):
            if text in wanted:
                fixed.add(text)
    return frozenset(fixed)


def _renamed(model: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    if not names:
        return model
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        vocabulary = {names.get(text, text): number for text, number in vocabulary.items()}
    else:
        vocabulary = [[names.get(piece[0], piece[0]), *piece[1:]] for piece in vocabulary]
    renamed = {**model, "vocab": vocabulary}
    if model.get("unk_token") in names:
        renamed["unk_token"] = names[model["unk_token"]]
    return renamed
