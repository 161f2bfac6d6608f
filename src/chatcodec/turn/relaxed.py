"""Values as models write them, in JSON or nearly so, as strict JSON text.

`relaxed_json` takes single quotes, trailing commas, Python's words and tuples, bare keys and raw control characters. It
is linear, goes through the text once, and does not recurse; numbers keep their digits.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

MAX_DEPTH = 100
"""How deep a value may be nested."""
MAX_EXPONENT = 400
"""An integer that is written with an exponent (`1e20`) is written out up to here."""


def string_literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


# -- numbers

JSON_NUMBER = re.compile(r"(-?)(0|[1-9][0-9]*+)(?:\.([0-9]++))?(?:[eE]([+-]?[0-9]++))?")
NUMBER_START = re.compile(r"-?(?:(?:0|[1-9][0-9]*+)(?:\.[0-9]*+)?(?:[eE][+-]?[0-9]*+)?)?")
_NUMBER = re.compile(r"([+-]?)(D?)(?:\.(D?))?(?:[eE]([+-]?D))?".replace("D", "(?:[0-9]++(?:_[0-9]++)*+)"))


def exact_number(text: str, zeros: bool) -> str | None:
    """A number in JSON's writing, from that or Python's (`+5`, `1_000`, `.5`); `zeros` says whether zeros may lead."""
    if JSON_NUMBER.fullmatch(text):
        return text
    number = _NUMBER.fullmatch(text)
    if number is None or not (number[2] or number[3]):
        return None
    sign, whole, fraction, exponent = (part and part.replace("_", "") for part in number.groups())
    if len(whole) > 1 and whole[0] == "0" and not zeros:
        return None
    sign, whole = sign.replace("+", ""), whole.lstrip("0") or "0"
    fraction = "" if fraction is None else f".{fraction or 0}"
    return f"{sign}{whole}{fraction}" if exponent is None else f"{sign}{whole}{fraction}e{exponent}"


def exact_integer(number: str) -> str | None:
    """An integral number in JSON's writing, without fraction and exponent; None for any other, or a huge exponent."""
    match = JSON_NUMBER.fullmatch(number)
    sign, whole, fraction, exponent = match.groups("") if match else ("", "", "", "")
    if not fraction and not exponent:
        return number
    if len(exponent) > 4 or abs(int(exponent or "0")) > MAX_EXPONENT:
        return None
    shift = int(exponent or "0") - len(fraction)
    digits, rest = whole + fraction + "0" * shift, ""
    if shift < 0:
        digits, rest = digits[:shift], digits[shift:]
    if rest.strip("0"):
        return None
    digits = digits.lstrip("0") or "0"
    return digits if digits == "0" else sign + digits


# -- values written loosely

WORDS = {
    "true": ("true", "boolean"),
    "True": ("true", "boolean"),
    "false": ("false", "boolean"),
    "False": ("false", "boolean"),
    "null": ("null", "null"),
    "None": ("null", "null"),
}
WORDS_IN_LOWER_CASE = {word.lower(): meaning for word, meaning in WORDS.items()}
_NO_JSON = ("NaN", "Infinity", "-Infinity")
_JSON_SPACE = " \t\n\r"
_TOKEN = re.compile(
    r"""(?P<space>\s++)
    | (?P<string>"[^"\\]*+(?:\\.[^"\\]*+)*+" | '[^'\\]*+(?:\\.[^'\\]*+)*+')
    | (?P<number>[+-]?\.?[0-9][\w.+-]*+)
    | (?P<word>-?(?:[^\W\d]|\$)[\w$-]*+)
    | (?P<mark>[][{}(),:])""",
    re.DOTALL | re.VERBOSE,
)
_TO_REWRITE = re.compile(
    r"""\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|U00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4}|.)|["\x00-\x1f]""", re.DOTALL
)


def relaxed_json(text: str, *, max_depth: int = MAX_DEPTH) -> str | None:
    """The value as strict JSON, from JSON or Python's literals written more or less right; None where it is not one
    complete value, or nested deeper than `max_depth`.

    What is strict JSON stays as it is, save for white space around it. Beyond that are accepted: single quotes,
    control characters in strings, trailing commas, bare keys, tuples, Python's words and numbers. An escape that is
    none (`\\d`) is its characters; `\\'`, `\\x41` and `\\U0001F642` are what they are in Python.
    """
    return Relaxed(max_depth, bare_keys=True).convert(text)


@dataclass(slots=True)
class _Open:
    """An object or array that is still open: how it is closed, which part opened it, which is its last comma."""

    closer: str
    opener: int
    comma: int = 0


class Relaxed:
    """Writes a value as strict JSON, token by token. `needs` is what must come next: "value"; "item" or "key", which
    a closing bracket may stand for; "colon"; "comma", which a closing bracket or the end may stand for."""

    def __init__(self, max_depth: int, bare_keys: bool) -> None:
        self.max_depth = max_depth
        self.bare_keys = bare_keys
        self.parts: list[str] = []
        self.open: list[_Open] = []
        self.needs = "value"

    def convert(self, text: str) -> str | None:
        position = 0
        while position < len(text):
            token = _TOKEN.match(text, position)
            if token is None or not self._take(token.lastgroup, token[0]):
                return None
            position = token.end()
        return "".join(self.parts).strip() if self.needs == "comma" and not self.open else None

    def _take(self, kind: str | None, text: str) -> bool:
        if kind == "space":
            self.parts.append(" " if text.strip(_JSON_SPACE) else text)
            return True
        if kind != "mark":
            return self._scalar(kind, text)
        if text in "[{(":
            return self._enter(text)
        return self._separate(text) if text in ",:" else self._leave(text)

    def _scalar(self, kind: str | None, text: str) -> bool:
        value = _scalar(kind, text)
        if self.needs == "key":
            return self._key(text if value is None and kind == "word" and self.bare_keys else value)
        if value is None or self.needs not in ("value", "item"):
            return False
        self.parts.append(value)
        self.needs = "comma"
        return True

    def _key(self, key: str | None) -> bool:
        if key is None:
            return False
        self.parts.append(key if key[0] == '"' else f'"{key}"')
        self.needs = "colon"
        return True

    def _enter(self, mark: str) -> bool:
        if self.needs not in ("value", "item") or len(self.open) >= self.max_depth:
            return False
        self.open.append(_Open({"[": "]", "{": "}", "(": ")"}[mark], len(self.parts)))
        self.parts.append("{" if mark == "{" else "[")
        self.needs = "key" if mark == "{" else "item"
        return True

    def _separate(self, mark: str) -> bool:
        if mark == ":":
            accepted, self.needs = self.needs == "colon", "value"
        else:
            accepted = self.needs == "comma" and bool(self.open)
        if accepted and mark == ",":
            self.open[-1].comma = len(self.parts)
            self.needs = "key" if self.open[-1].closer == "}" else "item"
        self.parts.append(mark)
        return accepted

    def _leave(self, mark: str) -> bool:
        if not self.open or self.open[-1].closer != mark or self.needs in ("value", "colon"):
            return False
        left = self.open.pop()
        if self.needs != "comma" and left.comma:
            self.parts[left.comma] = ""
        if mark == ")" and self.needs == "comma" and not left.comma:
            self.parts[left.opener] = ""
        else:
            self.parts.append("}" if mark == "}" else "]")
        self.needs = "comma"
        return True


def _scalar(kind: str | None, text: str) -> str | None:
    if kind == "string":
        return f'"{_TO_REWRITE.sub(_rewrite, text[1:-1])}"'
    if kind == "number":
        return exact_number(text, zeros=False)
    return string_literal(text) if text in _NO_JSON else WORDS.get(text, (None,))[0]


def _rewrite(match: re.Match[str]) -> str:
    """One escape, quote or control character, as it stands in a JSON string."""
    text = match[0]
    if text[0] == "\\" and (text[1] in '"\\/bfnrt' or (text[1] == "u" and len(text) > 2)):
        return text
    if text == "\\'":
        return "'"
    if len(text) > 2:
        text = chr(int(text[2:], 16))
    return string_literal(text)[1:-1]
