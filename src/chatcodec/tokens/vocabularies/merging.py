"""Whether pairs merged in their order give what is merged by rank.

In: the parts of a BPE model, as a tokenizer.json has them. Out: whether `tokenizers`, which merges the pairs that it is
told to, and an encoder that merges any two tokens that make a third, the best of these first, give the same for every
text. They do where all pairs are told that make a token; and where each token's text is encoded as that token: then of
two neighbours that make a third one, the pair that is told is always there first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby


def merges_by_rank(
    words: Mapping[str, int],
    merges: Iterable[tuple[str, str]],
    *,
    whole: bool,
    encode: Callable[[str], list[int]],
    exempt: Callable[[str], bool],
) -> bool:
    """`whole` says that a text that is a word is taken for it without any merging; `encode` gives the tokens of a word;
    `exempt` says of a word that no text spells it."""
    told = [left + right for left, right in merges]
    results = [word for word, _ in groupby(told)]
    if len(results) != len(set(results)):
        return False
    if whole:
        return len(told) == sum(word[:cut] in words and word[cut:] in words for word in words for cut in _cuts(word))
    return all(exempt(word) or encode(word) == [number] for word, number in words.items())


def _cuts(word: str) -> range:
    return range(1, len(word))
