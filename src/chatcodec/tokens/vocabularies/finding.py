"""Where a tokenizer comes from: files beside a chat template, a path, or an object of a library.

What holds: of a model's folder, the ids are those of transformers' tokenizer; no library is imported that the
vocabulary does not need; nothing is downloaded or executed; every failure is a `SourceError`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ...errors import SourceError
from ..tokenizer import Tokenizer
from . import files

_Found = TypeVar("_Found", Tokenizer, Tokenizer | None)

_TOKENIZER = "tokenizer.json"
_BELONGING = ("chat_template.jinja", "tokenizer_config.json", "chat_template.json", "processor_config.json")
_METHODS = ("engine", "controls", "unknown", "encode", "encode_with_places", "token_bytes", "control_tokens")
_ACCEPTED = (
    "accepted are a model's folder, its tokenizer.json, tekken.json, .tiktoken or .gguf, a Tokenizer of `tokenizers`, "
    "a fast tokenizer of `transformers`, an Encoding of `tiktoken`, a tokenizer of `mistral_common`, and an object "
    "that is a chatcodec Tokenizer"
)


def find_tokenizer(path: Path) -> Tokenizer | None:
    """The tokenizer of a model's folder, of a file that belongs to one, or of a GGUF file; None where there is none.

    Of a folder, tokenizer.json wins over tekken.json, which wins over ranks and models of other libraries.
    """
    if path.is_dir():
        return _of_folder(path)
    if path.name in _BELONGING:
        return _of_folder(path.parent)
    return _of_file(path)


def as_tokenizer(thing: object) -> Tokenizer:
    """A tokenizer, whatever it is given as: a path, an object of a library that is known here, or one of ours."""
    if all(hasattr(type(thing), name) for name in _METHODS):
        return thing  # type: ignore[return-value]
    if isinstance(thing, (str, os.PathLike)):
        return _at(Path(os.fsdecode(thing)))
    libraries = {base.__module__.partition(".")[0] for base in type(thing).__mro__}
    for library, adapt in _LIBRARIES.items():
        if library in libraries:
            return adapt(thing)
    raise SourceError(f"{type(thing).__module__}.{type(thing).__qualname__} is no tokenizer; {_ACCEPTED}")


def _at(path: Path) -> Tokenizer:
    if not path.exists():
        raise SourceError(f"{path}: no such file or folder; {_ACCEPTED}")
    found = find_tokenizer(path)
    if found is None:
        raise SourceError(f"{path}: no tokenizer there; {_ACCEPTED}")
    return found


def _of_folder(folder: Path) -> Tokenizer | None:
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    for wanted in (lambda name: name == _TOKENIZER, _is_tekken, _is_ranks):
        for name in filter(wanted, names):
            return _of_file(folder / name)
    return None


def _of_file(path: Path) -> Tokenizer | None:
    if path.suffix == ".gguf" or files.start(path, 4) == b"GGUF":
        from .gguf import gguf_tokenizer

        return _faster(gguf_tokenizer(path))
    if _is_tekken(path.name):
        from .tekken import tekken_tokenizer

        return tekken_tokenizer(path)
    if path.suffix == ".json":
        from .folder import folder_tokenizer

        return _faster(folder_tokenizer(path))
    return _of_ranks_or_pieces(path) if path.suffix == ".tiktoken" or ".model" in path.suffixes else None


def _of_ranks_or_pieces(path: Path) -> Tokenizer:
    from .sentence_pieces import sentencepiece_tokenizer
    from .tiktoken_ranks import is_ranks, ranks_tokenizer

    return ranks_tokenizer(path) if is_ranks(files.start(path, 1024)) else _faster(sentencepiece_tokenizer(path))


def _faster(found: _Found) -> _Found | Tokenizer:
    from .fast import faster
    from .hugging_face import HuggingFaceTokenizer

    return faster(found) if isinstance(found, HuggingFaceTokenizer) else found


def _is_tekken(name: str) -> bool:
    return name.startswith("tekken") and name.endswith(".json")


def _is_ranks(name: str) -> bool:
    return name.endswith(".tiktoken") or name.startswith(("tokenizer.model", "tiktoken.model"))


def _of_tokenizers(thing: Any) -> Tokenizer:
    from .hugging_face import HuggingFaceTokenizer

    return _faster(HuggingFaceTokenizer.from_tokenizer(thing))


def _of_transformers(thing: Any) -> Tokenizer:
    backend = getattr(thing, "backend_tokenizer", None)
    if backend is not None:
        return _of_tokenizers(backend)
    inner = getattr(thing, "tokenizer", None)
    if inner is None:
        kind = type(thing).__qualname__
        raise SourceError(f"{kind}: a tokenizer of transformers without a backend of `tokenizers`; {_ACCEPTED}")
    return as_tokenizer(inner)


def _of_tiktoken(thing: Any) -> Tokenizer:
    from .tiktoken_ranks import TiktokenTokenizer

    return TiktokenTokenizer(thing)


def _of_mistral(thing: Any) -> Tokenizer:
    from .tekken import mistral_tokenizer

    return _faster(mistral_tokenizer(thing))


_LIBRARIES: dict[str, Callable[[Any], Tokenizer]] = {
    "transformers": _of_transformers,
    "tokenizers": _of_tokenizers,
    "tiktoken": _of_tiktoken,
    "mistral_common": _of_mistral,
}
