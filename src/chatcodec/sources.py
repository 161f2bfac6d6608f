"""Where a chat template comes from: a model's folder, a file of it, a GGUF file, or a built-in format.

In: a path or a name. Out: a `Source`: the template, the special tokens it can name, what ends a turn.
What holds: template and special tokens are those that transformers takes from the same folder; nothing is
downloaded or executed; no more is read than the limits here allow; every failure is a `SourceError` that
says what was looked for, what was found, and the way out.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

from chatcodec.errors import SourceError

TEMPLATE_LIMIT = 4 << 20
JSON_LIMIT = 64 << 20
TEMPLATES_LIMIT = 64

TEMPLATE_SUFFIXES = (".jinja", ".jinja2", ".j2", ".txt")
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

_JINJA = "chat_template.jinja"
_JINJA_FOLDERS = ("chat_templates", "additional_chat_templates")
_CONFIG = "tokenizer_config.json"
_PROCESSOR = ("processor_config.json", "chat_template.json")
_GGUF_IDS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "sep_token": "tokenizer.ggml.seperator_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
    "cls_token": "tokenizer.ggml.cls_token_id",
    "mask_token": "tokenizer.ggml.mask_token_id",
    "eot_token": "tokenizer.ggml.eot_token_id",
    "eom_token": "tokenizer.ggml.eom_token_id",
}
_GGUF_STOPS = ("eos_token", "eot_token", "eom_token")
_GGUF_TOKENS = "tokenizer.ggml.tokens"
_GGUF_TEMPLATE = "tokenizer.chat_template"
_GGUF_UNSET = (1 << 32) - 1
_NUMBER = re.compile("[0-9]{1,18}")

_Templates: TypeAlias = dict[str, tuple[str, str]]  # name: (text, where it was found)


@dataclass(frozen=True)
class Source:
    """A chat template and what belongs to it.

    `name` is the folder's, the file's or the format's name, for errors; `found` says where the template was; `path` is
    the folder or file that was given, None for a built-in format.
    `template_name` is the template's own name among `templates`. `special_tokens` are texts by name
    (`bos_token`, ...). `stops` and `stop_ids` are the texts and ids of the tokens that end a turn, as far as
    they are known: the one may be shorter than the other.
    """

    name: str
    template: str
    found: str
    template_name: str
    templates: Mapping[str, str]
    special_tokens: Mapping[str, str]
    stops: tuple[str, ...]
    stop_ids: tuple[int, ...]
    path: Path | None = None


@dataclass(frozen=True)
class _Tokens:
    special: dict[str, str]
    stops: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Folder:
    path: Path
    names: frozenset[str]

    @classmethod
    def at(cls, path: Path) -> _Folder:
        return cls(path, frozenset(os.listdir(path)))

    def json(self, name: str) -> dict[str, Any]:
        return _json_object(self.path / name) if name in self.names else {}


def find(source: str | os.PathLike[str], *, template_name: str | None = None) -> Source:
    """The template at `source`: a model's folder, a file (`.jinja`, `.json`, `.gguf`), or a built-in name.

    A path wins over a built-in name. `template_name` picks one of several named templates; without it the
    one named `default` is taken, or the only one. Of a folder, `.jinja` files win over
    `tokenizer_config.json`, which wins over a processor's files. A file that belongs to a model's folder
    (`tokenizer_config.json`, `chat_template.jinja`) brings that folder's tokens with it. Raises
    `SourceError`, and nothing else, for whatever cannot be read or understood.
    """
    try:
        text = os.fsdecode(source)
    except (TypeError, ValueError) as error:
        raise SourceError(f"a path or a name is wanted, not {source!r:.200}") from error
    try:
        return _find(text, template_name, named=isinstance(source, str))
    except OSError as error:
        where = _shown(os.fsdecode(error.filename) if error.filename else text)
        raise SourceError(f"{where}: cannot be read: {error.strerror or error}") from error


def builtin_names() -> tuple[str, ...]:
    """The names of the built-in formats, in alphabetical order."""
    folder = resources.files("chatcodec").joinpath("builtin")
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return tuple(sorted(name.removesuffix(".jinja") for name in names if name.endswith(".jinja")))


def _find(text: str, template_name: str | None, *, named: bool) -> Source:
    path: Path | None = None
    mode = _mode(text)
    if mode is None and named and text in builtin_names():
        name, templates, tokens = text, *_from_builtin(text)
    elif mode is None:
        raise SourceError(_not_found(text))
    else:
        path = Path(text)
        name = path.name or Path(os.path.abspath(path)).name or text
        templates, tokens = _from_path(path, mode)
    chosen = _choose(templates, template_name, _shown(text))
    return Source(
        name=name,
        template=templates[chosen][0],
        found=templates[chosen][1],
        template_name=chosen,
        templates={key: template for key, (template, _) in templates.items()},
        special_tokens=tokens.special,
        stops=tuple(dict.fromkeys(tokens.stops)),
        stop_ids=tuple(dict.fromkeys(tokens.stop_ids)),
        path=path,
    )


def _mode(text: str) -> int | None:
    try:
        return os.stat(text).st_mode if text else None
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL):
            raise
        return None
    except ValueError:
        return None


def _from_path(path: Path, mode: int) -> tuple[_Templates, _Tokens]:
    if stat.S_ISDIR(mode):
        return _from_folder(_Folder.at(path))
    _regular(path, mode)
    suffix = path.suffix.lower()
    if suffix == ".gguf" or _starts(path, b"GGUF"):
        return _from_gguf(path)
    if suffix == ".json":
        return _from_json(path)
    if suffix in TEMPLATE_SUFFIXES:
        templates = {"default": (_template(path), str(path))}
        if path.name != _JINJA:
            return templates, _Tokens({})
        folder = _Folder.at(path.parent)
        return templates, _folder_tokens(folder, folder.json(_CONFIG))
    raise SourceError(f"{_shown(path)}: no kind of file that is known here; {_accepted()}")


def _choose(templates: _Templates, wanted: str | None, source: str) -> str:
    names = ", ".join(map(_shown, templates))
    if wanted is not None and wanted not in templates:
        raise SourceError(f"{source}: no template named {_shown(wanted)}; there is: {names}")
    chosen = wanted if wanted is not None else "default" if len(templates) > 1 else next(iter(templates))
    if chosen not in templates:
        raise SourceError(f"{source}: several templates and none is the default; pass template_name, one of: {names}")
    text, found = templates[chosen]
    if not text.strip():
        raise SourceError(f"{found}: the template is empty")
    return chosen


def _from_folder(folder: _Folder) -> tuple[_Templates, _Tokens]:
    config = folder.json(_CONFIG)
    templates = _jinja_files(folder) or _json_templates(folder.path / _CONFIG, config)
    for name in _PROCESSOR:
        templates = templates or _json_templates(folder.path / name, folder.json(name))
    if not templates:
        raise SourceError(_no_template(folder))
    return templates, _folder_tokens(folder, config)


def _jinja_files(folder: _Folder) -> _Templates:
    files = {"default": folder.path / _JINJA} if _JINJA in folder.names else {}
    for name in _JINJA_FOLDERS:
        if name in folder.names and (folder.path / name).is_dir():
            named = sorted((folder.path / name).glob("?*.jinja"))
            files |= {file.name.removesuffix(".jinja"): file for file in named}
    if len(files) > TEMPLATES_LIMIT:
        raise SourceError(
            f"{_shown(folder.path)}: {len(files)} templates, more than the {TEMPLATES_LIMIT} that are read"
        )
    return {name: (_template(file), str(file)) for name, file in files.items()}


def _from_json(path: Path) -> tuple[_Templates, _Tokens]:
    config = _json_object(path)
    folder = _Folder.at(path.parent)
    templates = _json_templates(path, config)
    if not templates:
        beside = f"; beside it is {_JINJA}: give the folder instead" if _JINJA in folder.names else ""
        raise SourceError(
            f"{_shown(path)}: no chat template: it has no key 'chat_template'{beside or '; ' + _accepted()}"
        )
    return templates, _folder_tokens(folder, folder.json(_CONFIG) if path.name in _PROCESSOR else config)


def _json_templates(path: Path, config: dict[str, Any]) -> _Templates:
    value = config.get("chat_template")
    where = f"{path}, chat_template"
    if value is None:
        return {}
    if isinstance(value, list):
        if not all(isinstance(entry, dict) and isinstance(entry.get("name"), str) for entry in value):
            raise SourceError(f"{where}: a list whose entries are not all {{'name': ..., 'template': ...}}")
        value = {entry["name"]: entry.get("template") for entry in value}
    named = isinstance(value, dict)
    texts: dict[str, Any] = value if isinstance(value, dict) else {"default": value}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise SourceError(f"{where}: the template {_shown(name)} is {_kind(text)}, not text")
        if len(text) > TEMPLATE_LIMIT:
            raise SourceError(f"{where}: the template {_shown(name)} is longer than {TEMPLATE_LIMIT} characters")
    return {name: (text, f"{where}[name={name}]" if named else where) for name, text in texts.items()}


def _folder_tokens(folder: _Folder, config: dict[str, Any]) -> _Tokens:
    special = _special_tokens(folder, config)
    ids = _generation_stops(folder)
    eos = special.get("eos_token")
    if not ids and eos is None:
        return _Tokens(special)
    added = _added_tokens(config.get("added_tokens_decoder"), folder.path / _CONFIG)
    if not (added.keys() >= set(ids) if ids else eos in added.values()):
        added = _tokenizer_tokens(folder) | added
    stops = tuple(added[number] for number in ids if number in added)
    if not stops and eos is not None:
        stops = (eos,)
    return _Tokens(special, stops, ids or tuple(number for number, text in added.items() if text == eos)[:1])


def _special_tokens(folder: _Folder, config: dict[str, Any]) -> dict[str, str]:
    # As in transformers, special_tokens_map.json counts only where the config is of the time before
    # added_tokens_decoder, and there it wins for the tokens of the well-known names.
    older = {} if "added_tokens_decoder" in config else folder.json("special_tokens_map.json")
    values = {**older, **config, **{name: older[name] for name in NAMED_TOKENS if name in older}}
    found: dict[str, str] = {}
    for name, value in values.items():
        text = _token_text(value)
        if name in NAMED_TOKENS and value is not None and text is None:
            raise SourceError(f"{_shown(folder.path)}: the special token {name} is {_kind(value)}, not text")
        if name.endswith("_token") and text is not None:
            found[name] = text
    for extra in (config.get("extra_special_tokens"), older.get("extra_special_tokens")):
        named = extra.items() if isinstance(extra, dict) else ()
        found |= {name: text for name, value in named if (text := _token_text(value)) is not None}
    return found


def _token_text(value: object) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _generation_stops(folder: _Folder) -> tuple[int, ...]:
    value = folder.json("generation_config.json").get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(number) is int for number in ids):
        where = _shown(folder.path / "generation_config.json")
        raise SourceError(f"{where}: eos_token_id is neither a number nor a list of numbers")
    return tuple(number for number in ids if number >= 0)


def _added_tokens(value: object, path: Path) -> dict[int, str]:
    if value is not None and not isinstance(value, dict):
        raise SourceError(f"{_shown(path)}: added_tokens_decoder is {_kind(value)}, not an object")
    return _tokens((value or {}).items(), path)


def _tokenizer_tokens(folder: _Folder) -> dict[int, str]:
    path = folder.path / "tokenizer.json"
    if path.name not in folder.names:
        return {}
    text = _text(path, JSON_LIMIT)
    # Vocabulary and merges, behind the added tokens, are nearly all of the file: half a second to parse.
    key = re.search(r'"added_tokens"\s*:\s*(?=\[)', text)
    entries = _parse(text, path, key.end()) if key else []
    if not all(isinstance(entry, dict) for entry in entries):
        raise SourceError(f"{_shown(path)}: added_tokens holds something that is not an object")
    return _tokens(((entry.get("id"), entry) for entry in entries), path)


def _tokens(entries: Iterable[tuple[object, object]], path: Path) -> dict[int, str]:
    found: dict[int, str] = {}
    for key, entry in entries:
        text = _token_text(entry)
        number = int(key) if isinstance(key, str) and _NUMBER.fullmatch(key) else key
        if text is None or type(number) is not int:
            raise SourceError(f"{_shown(path)}: the added token {str(key)[:40]!r} is not a number with its text")
        found[number] = text
    return found


def _from_gguf(path: Path) -> tuple[_Templates, _Tokens]:
    from chatcodec.gguf_metadata import read_metadata

    wanted = {*_GGUF_IDS.values(), _GGUF_TOKENS, _GGUF_TEMPLATE}
    metadata = read_metadata(path, lambda key: key in wanted or key.startswith(_GGUF_TEMPLATE + "."))
    templates: _Templates = {}
    for key in sorted(key for key in metadata if key.startswith(_GGUF_TEMPLATE)):
        text = metadata[key]
        if not isinstance(text, str):
            raise SourceError(f"{_shown(path)}: {key} is not text")
        templates.setdefault(key[len(_GGUF_TEMPLATE) + 1 :] or "default", (text, f"{path}, {key}"))
    if not templates:
        raise SourceError(
            f"{_shown(path)}: no chat template: the metadata has no {_GGUF_TEMPLATE}. A base model, a "
            "projector and the later parts of a split model have none: give the first part, or another file"
        )
    return templates, _gguf_tokens(path, metadata)


def _gguf_tokens(path: Path, metadata: Mapping[str, object]) -> _Tokens:
    from chatcodec.gguf_metadata import Array

    ids: dict[str, int] = {}
    for name, key in _GGUF_IDS.items():
        number = metadata.get(key, _GGUF_UNSET)
        if type(number) is not int:
            raise SourceError(f"{_shown(path)}: {key} is not a whole number")
        if 0 <= number != _GGUF_UNSET:
            ids[name] = number
    vocabulary = metadata.get(_GGUF_TOKENS)
    if not isinstance(vocabulary, (Array, type(None))):
        raise SourceError(f"{_shown(path)}: {_GGUF_TOKENS} is not an array")
    texts = vocabulary.pick(ids.values()) if vocabulary is not None else {}
    special = {name: texts[number] for name, number in ids.items() if number in texts and name in NAMED_TOKENS}
    stops = tuple(ids[name] for name in _GGUF_STOPS if name in ids)
    return _Tokens(special, tuple(texts[number] for number in stops if number in texts), stops)


def _from_builtin(name: str) -> tuple[_Templates, _Tokens]:
    folder = resources.files("chatcodec").joinpath("builtin")
    formats = folder.joinpath("formats.json")
    known = _parse(formats.read_text("utf-8"), Path(str(formats))).get(name, {}) if formats.is_file() else {}
    text = folder.joinpath(f"{name}.jinja").read_text("utf-8")
    special = {key: token for key, token in known.get("special_tokens", {}).items() if token is not None}
    tokens = _Tokens(special, tuple(known.get("stops", ())), tuple(known.get("stop_ids", ())))
    return {"default": (text, f"chatcodec's built-in {name}.jinja")}, tokens


def _template(path: Path) -> str:
    text = _text(path, TEMPLATE_LIMIT)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _json_object(path: Path) -> dict[str, Any]:
    value = _parse(_text(path, JSON_LIMIT).removeprefix("\ufeff"), path)
    if not isinstance(value, dict):
        raise SourceError(f"{_shown(path)}: an object was expected, and this is {_kind(value)}")
    return value


def _parse(text: str, path: Path, at: int | None = None) -> Any:
    try:
        return json.loads(text) if at is None else json.JSONDecoder().raw_decode(text, at)[0]
    except json.JSONDecodeError as error:
        where = f"{_shown(path)}, line {error.lineno}, column {error.colno}"
        raise SourceError(f"{where}: not valid JSON: {error.msg}") from error
    except (RecursionError, ValueError) as error:
        raise SourceError(f"{_shown(path)}: JSON that cannot be read: {error}") from error


def _text(path: Path, limit: int) -> str:
    _regular(path, os.stat(path).st_mode)
    with open(path, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise SourceError(f"{_shown(path)}: larger than the {limit} bytes that are read of such a file")
    if data.startswith(b"version https://git-lfs"):
        raise SourceError(f"{_shown(path)}: only a Git LFS pointer, not the file itself; run git lfs pull")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SourceError(f"{_shown(path)}, line {line}: not UTF-8 ({error.reason}); save it as UTF-8") from error


def _regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
        raise SourceError(f"{_shown(path)}: {kind}, where a file was expected")


def _starts(path: Path, magic: bytes) -> bool:
    with open(path, "rb") as file:
        return file.read(len(magic)) == magic


def _not_found(text: str) -> str:
    if not text:
        return f"an empty name; {_accepted()}"
    if "{%" in text or "{{" in text:
        return f"{_shown(text)}: no such file; a template's own text is given to Codec(...) instead"
    hub = "; if it is a model on a hub, download it first" if re.fullmatch(r"[\w.-]+/[\w.-]+", text) else ""
    return f"{_shown(text)}: no such file or folder, and no built-in format{hub}; {_accepted()}"


def _no_template(folder: _Folder) -> str:
    telling = (*TEMPLATE_SUFFIXES, ".json", ".gguf")
    here = sorted(name for name in folder.names if name.endswith(telling) or name in _JINJA_FOLDERS)
    more = f" and {len(here) - 12} more" if len(here) > 12 else ""
    shown = ", ".join(map(_shown, here[:12])) or "nothing"
    looked = ", ".join((_JINJA, *(f"{name}/*.jinja" for name in _JINJA_FOLDERS)))
    return (
        f"{_shown(folder.path)}: no chat template in this folder. Looked for {looked}, and the key "
        f"'chat_template' in {', '.join((_CONFIG, *_PROCESSOR))}. "
        f"Of interest here: {shown}{more}; {_accepted()}"
    )


def _accepted() -> str:
    builtin = ", ".join(builtin_names()) or "none"
    return (
        f"accepted are a model's folder, a template ({', '.join(TEMPLATE_SUFFIXES)}), "
        f"a tokenizer_config.json, a .gguf, or a built-in format ({builtin})"
    )


def _shown(text: str | Path) -> str:
    text = str(text)
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= 300 else f"{text[:200]}…"


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
