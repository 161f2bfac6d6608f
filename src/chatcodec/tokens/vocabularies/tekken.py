"""Mistral's vocabularies: a tekken.json, or a tokenizer of the library mistral_common.

In: a path or an object. Out: a `Tokenizer` whose ids are those of mistral_common for a text; its special tokens are
the control tokens. A tekken.json is read without mistral_common, by tiktoken, on which that is built.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from ...errors import SourceError
from ..tokenizer import Control, Tokenizer
from . import files
from .sentence_pieces import sentencepiece_tokenizer
from .tiktoken_ranks import encoding_of

_EARLY_SPECIAL_TOKENS = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] "
    "[IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"
)
"""Those of files that do not list them, in order."""


def tekken_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a tekken.json."""
    definition = files.json_object(path)
    try:
        config = definition["config"]
        special = int(config["default_num_special_tokens"])
        texts = _special_tokens(definition.get("special_tokens"), special)
        words = definition["vocab"][: int(config["default_vocab_size"]) - special]
        ranks = {base64.b64decode(word["token_bytes"], validate=True): int(word["rank"]) for word in words}
        pattern = config["pattern"]
        if set(ranks.values()) != set(range(len(words))) or not isinstance(pattern, str):
            raise ValueError("its words are not numbered from 0 on")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SourceError(f"{path}: not a tekken.json that can be read: {error!r}") from error
    controls = [Control(number, text) for number, text in enumerate(texts)]
    return encoding_of(
        ranks,
        pattern,
        controls,
        name=str(path),
        shift=special,
        unknown=texts.index("<unk>") if "<unk>" in texts else None,
    )


def _special_tokens(listed: list[dict[str, Any]] | None, count: int) -> list[str]:
    """The special tokens in the order of their ids; the rest of the ids that are set apart has names of its own."""
    texts = [f"<SPECIAL_{number}>" for number in range(count)]
    if listed is None:
        early = _EARLY_SPECIAL_TOKENS.split()
        texts[: len(early)] = early
    for entry in listed or ():
        texts[int(entry["rank"])] = str(entry["token_str"])
    return texts


def mistral_tokenizer(thing: Any) -> Tokenizer:
    """The tokenizer in an object of mistral_common's: a `MistralTokenizer`, or what it holds."""
    inner = getattr(thing, "instruct_tokenizer", thing)
    inner = getattr(inner, "tokenizer", inner)
    try:
        path = Path(inner.file_path)
    except (AttributeError, TypeError, ValueError) as error:
        kind = type(thing).__qualname__
        raise SourceError(f"{kind} of mistral_common: not a tokenizer that was read from a file") from error
    if path.suffix == ".json":
        return tekken_tokenizer(path)
    return sentencepiece_tokenizer(path, each=True)
