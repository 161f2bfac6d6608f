"""Rendering, side by side in one run: chatcodec plain and traced, transformers' compiled template, and minijinja.

    python benchmarks/render.py [--turns 10 100 1000] [--originals FOLDER]

Each format renders agent conversations: per turn reasoning, a call and its result. The figures are the best of several
runs in milliseconds, and how many times as long the others take as chatcodec's plain render. All texts are compared
first. With --originals the formats' original templates run too, as far as they are quick enough to wait for.
"""

from __future__ import annotations

import argparse
import gc
import json
import timeit
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from chatcodec.sources import builtin_names
from chatcodec.template import Budget, Template

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "The city's name."},
                    "days": {"type": "integer"},
                    "unit": {"type": "string", "enum": ["c", "f"]},
                },
                "required": ["city"],
            },
        },
    }
]


def conversation(turns: int) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are a careful agent that uses tools. " * 4}]
    for turn in range(turns):
        if turn % 5 == 0:
            messages.append({"role": "user", "content": f"Question {turn}: what is the weather in city {turn}?"})
        arguments = {"city": f"City {turn}", "days": 3, "unit": "c"}
        function = {"name": "get_weather", "arguments": arguments}
        messages += [
            {
                "role": "assistant",
                "content": f"I will look that up ({turn}).",
                "reasoning_content": f"The user asks about city {turn}, and a tool knows. " * 3,
                "tool_calls": [{"id": f"call_{turn}", "type": "function", "function": function}],
            },
            {
                "role": "tool",
                "tool_call_id": f"call_{turn}",
                "name": "get_weather",
                "content": json.dumps({"degrees": turn, "sky": "clear", "wind": "weak"}),
            },
        ]
    return {"messages": messages, "tools": TOOLS, "add_generation_prompt": True}


def milliseconds(render: Callable[[], object]) -> float:
    """The best of several runs; short renders run many times in a row, as they do in a server."""
    timer = timeit.Timer(render, setup="gc.enable()", globals={"gc": gc})
    number, _ = timer.autorange()
    return min(timer.repeat(5, number)) / number * 1e3


def contestants(source: str) -> dict[str, Callable[..., Any]]:
    """Who renders, by name; those that are not installed are left out."""
    template = Template(source, budget=Budget(steps=10**9, chars=10**10, seconds=1000))
    found: dict[str, Callable[..., Any]] = {"plain": template.render, "traced": template.trace}
    try:
        from transformers.utils.chat_template_utils import _compile_jinja_template

        found["transformers"] = _compile_jinja_template(source).render
    except ImportError:
        pass
    try:
        from minijinja import Environment

        environment = Environment(trim_blocks=True, lstrip_blocks=True, pycompat=True, templates={"chat": source})
        environment.add_filter("tojson", lambda value, **_: json.dumps(value, ensure_ascii=False))
        environment.add_function("raise_exception", _refuse)
        found["minijinja"] = lambda **variables: environment.render_template("chat", **variables)
    except ImportError:
        pass
    return found


def _refuse(message: str) -> None:
    raise ValueError(message)


def row(name: str, source: str, turns: int) -> None:
    variables = conversation(turns)
    rivals = contestants(source)
    expected = rivals["plain"](**variables)
    figures: dict[str, str] = {}
    baseline = 0.0
    for rival, render in rivals.items():
        try:
            if str(render(**variables)) != expected:
                figures[rival] = "other text"
                continue
        except Exception as error:
            figures[rival] = type(error).__name__
            continue
        took = milliseconds(lambda render=render: render(**variables))
        baseline = baseline or took
        figures[rival] = f"{took:9.3f} {took / baseline:5.1f}x"
    print(f"{name:24}{turns:6} " + " ".join(f"{figures.get(rival, '-'):>17}" for rival in RIVALS), flush=True)


RIVALS = ("plain", "traced", "transformers", "minijinja")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--originals", type=Path, help="a folder with the original templates, one NAME.jinja a format")
    options = parser.parse_args()
    print(f"{'format':24}{'turns':>6} " + " ".join(f"{rival + ' (ms)':>17}" for rival in RIVALS))
    for name in builtin_names():
        source = (files("chatcodec.builtin") / f"{name}.jinja").read_text(encoding="utf-8")
        for turns in options.turns:
            row(name, source, turns)
        original = options.originals / f"{name}.jinja" if options.originals else None
        for turns in options.turns if original and original.exists() else ():
            assert original is not None
            if name == "step-audio-r1" and turns > 100:
                continue  # quadratic in the messages
            row(f"{name} (original)", original.read_text(encoding="utf-8"), turns)


if __name__ == "__main__":
    main()
