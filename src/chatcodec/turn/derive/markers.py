"""Where literals may be cut, for derivation: what they have in common, never with a marker or a word torn apart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

_TOKEN = re.compile(
    r"""
      \A[^<>\n]*>                # the rest of a marker that a field interrupted: `">`
    | <[^<>\n]*(?:>|\Z)          # `<think>`, `<parameter=` before a field
    | \[/?[A-Z_]+\] | \[/?\|[^\[\]\n]*\|\]
    | \w+ | \s | .
    """,
    re.VERBOSE | re.DOTALL,
)
_MARKER = re.compile(r"\]<\]\w+\[>\[|<[^<>\n]+>|\[/?[A-Z_]+\]|\[/?\|[^\[\]\n]+\|\]|[\[\]]\w*~!?\w*[\[\]]")
"""What stands out as written for a tokenizer: `<think>`, `[INST]`, `[|user|]`, `]~b]`."""
_OPPOSITES = (("start", "end"), ("begin", "end"), ("open", "close"), ("START", "END"), ("BEGIN", "END"))


def borders(text: str) -> frozenset[int]:
    """The positions at which `text` may be cut."""
    return frozenset((0, len(text), *(match.start() for match in _TOKEN.finditer(text))))


def common_start(*texts: str) -> str:
    """What all texts begin with."""
    shared = _alike(texts)
    cuts = frozenset.intersection(*map(borders, texts))
    return texts[0][: max(cut for cut in cuts if cut <= shared)]


def common_end(*texts: str) -> str:
    """What all texts end with."""
    shared = _alike([text[::-1] for text in texts])
    cuts = frozenset.intersection(*(frozenset(len(text) - cut for cut in borders(text)) for text in texts))
    length = max(cut for cut in cuts if cut <= shared)
    return texts[0][len(texts[0]) - length :]


def _alike(texts: Sequence[str]) -> int:
    """The number of characters that all texts begin with."""
    places = takewhile(lambda characters: len(set(characters)) == 1, zip(*texts, strict=False))
    return sum(1 for _ in places)


def markers(text: str) -> list[str]:
    """The markers in a literal, in order."""
    return _MARKER.findall(text)


def first_marker(text: str) -> re.Match[str] | None:
    return _MARKER.search(text)


def leading_marker(text: str) -> str | None:
    """The marker that `text` begins with, white space aside."""
    found = _MARKER.match(text.lstrip())
    return found[0] if found else None


def mirrors(marker: str) -> Iterator[str]:
    """How the marker that closes what `marker` opens may be spelled."""
    for opening, closing in _OPPOSITES:
        if opening in marker:
            yield marker.replace(opening, closing)
    if marker.startswith("<|") and not marker.endswith("|>"):
        yield f"<{marker[2:-1]}|>"
    for bracket in ("<|", "[|", "<", "["):
        if marker.startswith(bracket):
            yield f"{bracket}/{marker[len(bracket) :]}"


def mirrored(marker: str) -> str | None:
    """The likeliest spelling; none for a marker that does not look as if it opened anything."""
    spelled = next(mirrors(marker), None)
    return None if spelled is None or spelled.startswith(("<|/", "[|/")) else spelled


def find_mirror(text: str, opening: str) -> re.Match[str] | None:
    """The first marker in `text` that closes one of the markers of `opening`."""
    wanted = {mirror for marker in markers(opening) for mirror in mirrors(marker)}
    return next((match for match in _MARKER.finditer(text) if match[0] in wanted), None)


def closing_part(shared: str) -> str:
    """What ends a turn in `shared`, the start of two texts that go on differently: without what opens the next one."""
    found = markers(shared)
    if len(found) > 1:
        return shared[: shared.rindex(found[-1])]
    if not found:
        return shared
    end = shared.index(found[0]) + len(found[0])
    return shared[:end] + split_space(shared[end:])[0]


def split_space(text: str) -> tuple[str, str]:
    """The white space at the start of `text`, and the rest."""
    rest = text.lstrip()
    return text[: len(text) - len(rest)], rest


def unique(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item for item in items if item))
