"""A strategy for turn formats of every shape that their types allow."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from chatcodec.turn.format import (
    Arguments,
    BareArguments,
    Call,
    CallId,
    Calls,
    Channels,
    Index,
    JsonArguments,
    KeywordArguments,
    Literal,
    Name,
    Section,
    TaggedArguments,
    TurnFormat,
)

JSON_TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")

texts = st.text(max_size=4) | st.sampled_from(["<think>\n", "</think>", '{"name": "', "\n", "", "⟦\u2028▁"])
flags = st.booleans()


def rows(items: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, max_size=3).map(tuple)


def words(*choices: str) -> st.SearchStrategy[str]:
    return st.sampled_from(choices)


others = words("json", "ascii", "python", "mixed")
payloads = st.one_of(
    st.builds(JsonArguments, texts, texts, flags, flags, st.none() | st.integers(0, 8)),
    st.builds(
        TaggedArguments,
        texts,
        texts,
        texts,
        texts,
        words("raw", "json", "ascii", "python"),
        others,
        rows(st.tuples(words(*JSON_TYPES), texts)),
        st.none() | texts,
        flags,
    ),
    st.builds(KeywordArguments, texts, texts, words("json", "ascii", "python", "bare", "single", "raw"), others),
    st.builds(BareArguments, texts, texts, texts),
)
pieces = rows(
    st.builds(Literal, texts)
    | st.builds(Name)
    | st.builds(CallId, flags)
    | st.builds(Index, st.integers())
    | st.builds(Arguments, payloads)
)
calls = st.builds(
    Calls,
    st.builds(Call, pieces, rows(texts), rows(texts), rows(texts), st.none() | pieces),
    texts,
    texts,
    texts,
    texts,
    texts,
    flags,
)
sections = st.builds(Section, texts, texts, texts, texts)
formats = st.builds(
    TurnFormat,
    texts,
    texts,
    rows(texts),
    st.none() | sections,
    st.none() | texts,
    sections,
    st.none() | calls,
    st.permutations(["reasoning", "content", "calls"]).map(tuple),
    rows(texts),
    st.none() | st.builds(Channels, *[texts] * 11),
)
