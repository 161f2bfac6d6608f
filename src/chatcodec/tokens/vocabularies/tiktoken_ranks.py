"""tiktoken's vocabularies: a file of ranks (`.tiktoken`, or a tokenizer.model of that kind), or an `Encoding`.

In: what is said above. Out: a `Tokenizer` by the library tiktoken itself, as only that is sure to merge as the ranks
are meant. What a file of ranks does not say is given: by what pattern texts are cut, and the control tokens, if not
tokenizer_config.json beside it names them.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import SourceError
from ..tokenizer import Control
from . import files
from .added import control
from .bytewise import BytewiseTokenizer

if TYPE_CHECKING:
    import tiktoken

_SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_NOT_HAN = r"&&[^\p{Han}]"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _by_case(apart: str = "") -> str:
    """Words, and their short forms, cut where a capital follows a small letter; `apart` is not part of a word."""
    upper, lower = f"[{_UPPER}{apart}]", f"[{_LOWER}{apart}]"
    return f"{_BEFORE}{upper}*{lower}+{_SHORT}?|{_BEFORE}{upper}+{lower}*{_SHORT}?"


PATTERNS: Mapping[str, str] = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k_base": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s++$|\s*[\r\n]"
        r"|\s+(?!\S)|\s"
    ),
    "llama3": rf"{_SHORT}|{_BEFORE}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
    "qwen2": rf"{_SHORT}|{_BEFORE}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
    "o200k_base": rf"{_by_case()}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",
    "kimi-k2": rf"[\p{{Han}}]+|{_by_case(_NOT_HAN)}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
}
"""By what the texts of some published vocabularies are cut."""

_LINE = re.compile(rb"([A-Za-z0-9+/]+={0,2}) ([0-9]{1,9})")


def is_ranks(data: bytes) -> bool:
    """Whether a file that begins so is one of ranks."""
    return _LINE.match(data) is not None


class TiktokenTokenizer(BytewiseTokenizer):
    """A `Tokenizer` by a `tiktoken.Encoding`, whose special tokens are the control tokens."""

    def __init__(self, encoding: tiktoken.Encoding) -> None:
        import tiktoken

        super().__init__(
            encoding.encode_ordinary,
            encoding.decode_single_token_bytes,
            [Control(encoding.encode_single_token(text), text) for text in encoding.special_tokens_set],
            engine=f"tiktoken {tiktoken.__version__}",
        )


def ranks_tokenizer(
    path: str | os.PathLike[str], *, pattern: str | None = None, special_tokens: Mapping[str, int] | None = None
) -> BytewiseTokenizer:
    """The tokenizer of a file of ranks. `pattern` is a regular expression or one of `PATTERNS` by name;
    `special_tokens` are texts and their ids, without them those of tokenizer_config.json beside the file are taken."""
    path = Path(path)
    if pattern is None:
        raise SourceError(
            f"{path}: a file of ranks does not say by what pattern texts are cut; give the model's tokenizer.json, or "
            "tokenizer=ranks_tokenizer(path, pattern=...), of chatcodec.tokens.vocabularies.tiktoken_ranks, with its "
            f"regular expression or one of {', '.join(PATTERNS)}"
        )
    ranks = _ranks(path)
    controls = _listed(path) if special_tokens is None else [Control(n, text) for text, n in special_tokens.items()]
    taken = set(ranks.values())
    for token in controls:
        if token.id in taken:
            raise SourceError(f"{path}: the special token {token.text!r} has the id {token.id}, which is a rank too")
    return encoding_of(ranks, PATTERNS.get(pattern, pattern), controls, name=str(path))


def encoding_of(
    ranks: dict[bytes, int],
    pattern: str,
    controls: list[Control],
    *,
    name: str,
    shift: int = 0,
    unknown: int | None = None,
) -> BytewiseTokenizer:
    """The tokenizer of ranks and a pattern; a token's id is its rank and `shift`. `name` is for errors."""
    try:
        import tiktoken
    except ImportError as error:
        raise SourceError(f"{name}: the library tiktoken is needed: pip install 'chatcodec[tiktoken]'") from error
    try:
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    except (ValueError, OverflowError) as error:
        raise SourceError(f"{name}: not a vocabulary that tiktoken can read: {error}") from error
    texts = {rank + shift: text for text, rank in ranks.items()}
    encode = encoding.encode_ordinary
    return BytewiseTokenizer(
        (lambda text: [rank + shift for rank in encode(text)]) if shift else encode,
        texts.__getitem__,
        controls,
        engine=f"tiktoken {tiktoken.__version__}",
        unknown=unknown,
    )


def _ranks(path: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(files.read(path).splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match:
            try:
                ranks[base64.b64decode(match[1], validate=True)] = int(match[2])
                continue
            except binascii.Error:
                match = None
        if line:
            raise SourceError(f"{path}, line {number}: not a token in base64 and its rank")
    if len(set(ranks.values())) < len(ranks):
        raise SourceError(f"{path}: a rank is there twice")
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise SourceError(f"{path}: no token for {len(missing)} bytes, of which the first is 0x{missing[0]:02X}")
    return ranks


def _listed(path: Path) -> list[Control]:
    config = path.with_name("tokenizer_config.json")
    listed = files.optional_object(config).get("added_tokens_decoder", {})
    try:
        return [control(int(number), entry) for number, entry in listed.items()]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SourceError(f"{config}: added_tokens_decoder is not an object of numbers and tokens") from error
