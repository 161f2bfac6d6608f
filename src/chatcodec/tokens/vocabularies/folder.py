"""A tokenizer.json and the files beside it: the ids are those that transformers gives for the same folder.

transformers adds to the file's tokens those that tokenizer_config.json, or in older folders special_tokens_map.json
and added_tokens.json, name besides, and gives those that the file has with other flags the flags of the config. What
is not followed: a few of its classes (`LlamaTokenizer`) make a vocabulary anew from the words alone and may put spaces
before texts in another way than the file says; who wants that gives the object instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...errors import SourceError
from . import files
from .added import added_tokens
from .hugging_face import HuggingFaceTokenizer

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

Token = dict[str, Any]


def folder_tokenizer(path: Path) -> HuggingFaceTokenizer | None:
    """The tokenizer of the file at `path`, None if the file is something else. To a tokenizer.json belong the tokens
    that its folder's other files name."""
    definition = files.json_object(path)
    if "model" not in definition:
        return None
    entries = added_tokens(definition, name=str(path))
    if path.name == "tokenizer.json":
        entries = with_tokens_of(path.parent, entries)
    return HuggingFaceTokenizer({**definition, "added_tokens": entries}, name=str(path))


def with_tokens_of(folder: Path, entries: Iterable[Token]) -> list[Token]:
    """The added tokens of a vocabulary and those that the files of its folder name besides."""
    try:
        return _of_folder(folder, entries)
    except (AttributeError, TypeError, ValueError) as error:
        raise SourceError(f"{folder}: what its files say of added tokens is damaged: {error}") from error


def _of_folder(folder: Path, entries: Iterable[Token]) -> list[Token]:
    config = files.optional_object(folder / "tokenizer_config.json")
    known = {entry["content"]: entry for entry in entries}
    if "added_tokens_decoder" in config:
        listed = {int(number): _token(entry) for number, entry in config["added_tokens_decoder"].items()}
        texts = {token["content"]: token for token in listed.values()}
    else:
        config |= files.optional_object(folder / "special_tokens_map.json")
        listed = _older(files.optional_object(folder / "added_tokens.json"), config, known)
        texts = known
    named = [texts.get(token["content"], token) for token in map(_token, _named(config))]
    extra = [_token(value) for value in _extra(config)]
    special = {token["content"] for token in named}
    more = [token for _, token in sorted(listed.items()) if not _same(token, known.get(token["content"]))]
    told = known.keys() | {token["content"] for token in more}
    for token in named + extra:
        if token["content"] not in told:
            more.append(token)
    for token in more:
        token = {**token, "special": token["special"] or token["content"] in special}
        known[token["content"]] = {**known.get(token["content"], {"id": 0}), **token}
    return list(known.values())


def _older(numbers: Mapping[str, int], config: Mapping[str, Any], known: Mapping[str, Token]) -> dict[int, Token]:
    """The tokens of added_tokens.json, save those whose number another token of tokenizer.json has."""
    special = {_token(value)["content"] for value in [*_named(config), *_extra(config)]}
    taken = {token.get("id") for token in known.values()}
    return {
        number: _token({"content": text, "special": text in special})
        for text, number in numbers.items()
        if number not in taken
    }


def _named(config: Mapping[str, Any]) -> list[object]:
    """The special tokens that have a name, those of the well-known names first."""
    more = [name for name in config if name.endswith("_token") and name not in _NAMED]
    values = [config.get(name) for name in (*_NAMED, *more)]
    extra = config.get("extra_special_tokens")
    values += extra.values() if isinstance(extra, dict) else ()
    return [value for value in values if isinstance(value, str) or (isinstance(value, dict) and "content" in value)]


def _extra(config: Mapping[str, Any]) -> list[object]:
    """The special tokens that have no name."""
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens")
    return extra if isinstance(extra, list) else []


def _token(value: object) -> Token:
    """An added token with its flags; what is only a text is a special one."""
    token = {"special": True, "content": value} if isinstance(value, str) else dict(value)  # type: ignore[call-overload]
    special = bool(token.get("special", False))
    flags = {name: bool(token.get(name, False)) for name in ("single_word", "lstrip", "rstrip")}
    normalized = bool(token.get("normalized", not special))
    if not isinstance(token.get("content"), str):
        raise ValueError(f"{str(value)[:80]} has no text")
    return {"content": token["content"], **flags, "normalized": normalized, "special": special}


def _same(token: Token, other: Token | None) -> bool:
    return other is not None and all(other.get(name) == value for name, value in token.items())
