"""Files of a vocabulary, read within limits. Every failure is a `SourceError` that names the file."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from ...errors import SourceError

VOCABULARY_LIMIT = 256 << 20
CONFIG_LIMIT = 64 << 20


def read(path: Path, limit: int = VOCABULARY_LIMIT) -> bytes:
    data = start(path, limit + 1)
    if len(data) > limit:
        raise SourceError(f"{path}: larger than the {limit} bytes that are read of such a file")
    if data.startswith(b"version https://git-lfs"):
        raise SourceError(f"{path}: only a Git LFS pointer, not the file itself; run git lfs pull")
    return data


def start(path: Path, length: int) -> bytes:
    """The first bytes of a file."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise SourceError(f"{path}: not a file")
        with open(path, "rb") as file:
            return file.read(length)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error


def json_object(path: Path, limit: int = VOCABULARY_LIMIT) -> dict[str, Any]:
    try:
        value = json.loads(read(path, limit))
    except (RecursionError, ValueError) as error:
        raise SourceError(f"{path}: JSON that cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise SourceError(f"{path}: an object was expected")
    return value


def optional_object(path: Path) -> dict[str, Any]:
    """The same, of a small file; an empty object where there is no such file."""
    return json_object(path, CONFIG_LIMIT) if path.is_file() else {}
