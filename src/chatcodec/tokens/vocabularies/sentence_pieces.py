"""SentencePiece models: a `tokenizer.model`, read without the library and taken for a tokenizer.json.

In: the path of a model. Out: a tokenizer by the library `tokenizers`. What holds: the ids are those that SentencePiece
gives; only models that merge by score and leave the text as it is are read, which are those of Llama 2's and Mistral's
kind. SentencePiece puts a space before every text: here before each between two control tokens, unless the model's
tokenizer_config.json says that it is not `legacy`: then before the first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import SourceError
from . import files
from .added import is_control
from .folder import with_tokens_of
from .hugging_face import HuggingFaceTokenizer

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_MERGES_BY_SCORE = 2
_LONGEST = 512
_WAY_OUT = "give the model's tokenizer.json instead (tokenizer=...)"

Definition = dict[str, Any]


def sentencepiece_tokenizer(path: Path, *, each: bool | None = None) -> HuggingFaceTokenizer:
    """The tokenizer of the model at `path`. `each` says whether each text begins with a space, or the first one only;
    where it is None, the files of the folder say, and their tokens belong to it too."""
    model = _read(path)
    if each is not None:
        return HuggingFaceTokenizer(_definition(model, each), name=str(path))
    config = files.optional_object(path.with_name("tokenizer_config.json"))
    definition = _definition(model, bool(config.get("legacy", True)))
    definition["added_tokens"] = with_tokens_of(path.parent, definition["added_tokens"])
    return HuggingFaceTokenizer(definition, name=str(path))


class _Piece(NamedTuple):
    text: str
    score: float
    kind: int


class _Model(NamedTuple):
    pieces: Sequence[_Piece]
    prefix: bool
    byte_fallback: bool


def _read(path: Path) -> _Model:
    data = files.read(path)
    try:
        fields = list(_fields(data))
        pieces = [_piece(value) for number, value in fields if number == 1]
        trainer, normalizer = (dict(_fields(_last(fields, number))) for number in (2, 3))
    except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise SourceError(f"{path}: neither a SentencePiece model nor a file of ranks; {_WAY_OUT}") from error
    texts = {piece.text for piece in pieces}
    plain = [
        piece.text for piece in pieces if piece.kind == _USER_DEFINED and not is_control(piece.text, special=False)
    ]
    # In the normalizer: 2 is a table of letters, 4 drops white space, 5 writes a space as "▁"; in the trainer: 3 is the
    # kind of the model, 24 puts the space behind a word.
    changes = normalizer.get(2) or normalizer.get(4, 1) or not normalizer.get(5, 1) or trainer.get(24)
    if trainer.get(3) != _MERGES_BY_SCORE or changes or plain or not 0 < len(pieces) == len(texts):
        raise SourceError(f"{path}: a SentencePiece model of a kind that is not read here; {_WAY_OUT}")
    if max(map(len, texts)) > _LONGEST:
        raise SourceError(f"{path}: a SentencePiece model with a piece of more than {_LONGEST} letters")
    return _Model(pieces, bool(normalizer.get(3, 1)), bool(trainer.get(35)))


def _definition(model: _Model, each: bool) -> Definition:
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prefix = [{"type": "Prepend", "prepend": "▁"}] if model.prefix and each else []
    first = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    behind = [{**space, "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    return {
        "added_tokens": [
            {"id": number, "content": piece.text, "special": piece.kind != _USER_DEFINED}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            for number, piece in enumerate(model.pieces)
            if piece.kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        ],
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, space]},
        "pre_tokenizer": first if model.prefix and not each else None,
        "decoder": {"type": "Sequence", "decoders": behind},
        "model": {
            "type": "BPE",
            "vocab": {piece.text: number for number, piece in enumerate(model.pieces)},
            "merges": _merges(model.pieces),
            "unk_token": next((piece.text for piece in model.pieces if piece.kind == _UNKNOWN), None),
            "fuse_unk": True,
            "byte_fallback": model.byte_fallback,
        },
    }


def _merges(pieces: Sequence[_Piece]) -> list[tuple[str, str]]:
    """For each piece, the one with the best score first, all the pairs of pieces that it can be merged from."""
    normal = {piece.text: (-piece.score, number) for number, piece in enumerate(pieces) if piece.kind == _NORMAL}
    return [
        (text[:cut], text[cut:])
        for text in sorted(normal, key=normal.__getitem__)
        for cut in range(1, len(text))
        if text[:cut] in normal and text[cut:] in normal
    ]


def _piece(data: int | bytes) -> _Piece:
    fields = dict(_fields(data))
    (score,) = struct.unpack("<f", fields.get(2, bytes(4)))  # type: ignore[arg-type]
    text, kind = fields[1], fields.get(3, _NORMAL)
    if not isinstance(text, bytes) or not isinstance(kind, int):
        raise TypeError
    return _Piece(text.decode(), score, kind)


def _last(fields: Sequence[tuple[int, int | bytes]], wanted: int) -> int | bytes:
    return next((value for number, value in reversed(fields) if number == wanted), b"")


def _fields(data: int | bytes) -> Iterator[tuple[int, int | bytes]]:
    """The numbers and values of a protobuf message. Raises an error of Python's where it is none."""
    if not isinstance(data, bytes):
        raise TypeError
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, place = _varint(data, place)
            yield number, value
            continue
        length, place = _varint(data, place) if kind == 2 else ({1: 8, 5: 4}[kind], place)
        if place + length > len(data):
            raise ValueError
        yield number, data[place : place + length]
        place += length


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
        if shift > 63:
            raise ValueError
