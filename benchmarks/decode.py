"""Decoding while it streams: what a piece of four characters costs, beside transformers' response parser in one run.

    python benchmarks/decode.py [--quick] [--formats NAME …] [--sizes 1000 64000 1000000]

A content, a reasoning and a string argument of each size come in pieces of four characters, in each built-in format.
"first" and "last" are microseconds a piece in the first and the last tenth of that text, "all" those of the whole
turn from the decoder's making to its end, "at once" the same where it is fed in one piece; the best of several runs.
The last columns are how many times as long transformers takes. What comes out is compared with what went in.

transformers' parser is fed the same pieces, with response templates for these formats in the manner of its own
(`transformers/cli/serving/utils.py`). It hands on arguments as the raw text of the call, and their values at its end;
chatcodec hands on typed JSON as it comes. --quick leaves out the million characters.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import chatcodec
from chatcodec.sources import builtin_names

PIECE = 4
LONG = 500_000
"""Above it transformers runs once, and not at once, where it would take minutes a row."""
PARTS = ("content", "reasoning", "argument")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "write_file",
            "description": "Write a file.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "text": {"type": "string"}, "mode": {"type": "integer"}},
                "required": ["path", "text"],
            },
        },
    }
]
SAMPLE = (
    "The loop below adds up what is left, and says so; the second one is there for the case that nothing is.\n"
    'for (int i = 0; i < n && c[i] > 0; i++) {\n\tprintf("%d: %s\\n", i, names[i]);\n}\n'
    'Wetter in Zürich: 12 °C, schön; in 東京 it rains. A list: [1, 2], an object: {"a": null}, a tag: <b>x</b>.\n\n'
)


def text_of(size: int) -> str:
    return (SAMPLE * (size // len(SAMPLE) + 1))[: size - 1] + "."


# -- transformers


def json_calls(opening: str, closing: str) -> dict[str, Any]:
    return {
        "open_pattern": opening,
        "close_pattern": closing,
        "repeats": True,
        "content": "json",
        "transform": {"type": "function", "function": "{content}"},
    }


def named_calls(opening: str, closing: str, content: str, **arguments: str) -> dict[str, Any]:
    return {
        "open_pattern": opening,
        "close_pattern": closing,
        "repeats": True,
        "content": content,
        "content_args": arguments,
        "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
    }


def template(
    anchor: str, calls: dict[str, Any], end: str | None, *, reasoning: str | None = r"<think>"
) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if reasoning:
        opening = {"open": reasoning} if reasoning == "<think>" else {"open_pattern": reasoning}
        fields["reasoning_content"] = {**opening, "close": "</think>"}
    fields["tool_calls"] = calls
    fields["content"] = {"close_pattern": end} if end else {}
    return {"defaults": {"role": "assistant"}, "start_anchor": anchor, "fields": fields}


RESPONSE_TEMPLATES = {
    "step3-vl": template(
        "<|im_start|>assistant\n",
        json_calls(r"\s*(?:<tool_calls>\s*)?<tool_call>", r"</tool_call>(?:\s*</tool_calls>)?"),
        r"\s*<\|im_end\|>",
    ),
    "iquest-coder": template(
        "<|im_start|>assistant\n",
        named_calls(
            r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
            r"</function>\s*</tool_call>",
            "xml-inline",
            tag_pattern=r"<parameter=(?P<key>[^>\n]+)>\n(?P<value>.*?)\n</parameter>",
        ),
        r"\s*<\|im_end\|>",
        reasoning=None,
    ),
    "step-audio-r1": template(
        "<|BOT|>assistant\n",
        named_calls(r"\s*<\|CALL_START\|>function\n(?P<name>[^\n]+)\n", r"<\|CALL_END\|>", "json"),
        r"\s*<\|EOT\|>",
    ),
    "intellect-3": template(
        "<|assistant|>",
        named_calls(
            r"\s*<tool_call>(?P<name>[^<\n]+)\n",
            r"</tool_call>",
            "xml-inline",
            tag_pattern=r"<arg_key>(?P<key>[^<\n]+)</arg_key>\n<arg_value>(?P<value>.*?)</arg_value>",
        ),
        r"\s*<\|(?:user|observation|endoftext)\|>",
        reasoning=r"\s*<think>",
    ),
    "telechat3": template("<_bot>", json_calls(r"\s*<tool_call>", r"</tool_call>"), r"\s*<_end>"),
}


# -- what is measured


@dataclass(frozen=True)
class Case:
    """A completion in pieces. `first` and `last` are the tenths of the text that the case is about, as slices."""

    name: str
    part: str
    text: str
    prompt: str
    completion: str
    pieces: list[str]
    first: slice
    last: slice

    @classmethod
    def of(cls, codec: chatcodec.Codec, name: str, part: str, size: int) -> Case:
        text = text_of(size)
        message: dict[str, Any] = {"role": "assistant"}
        if part == "content":
            message["content"] = text
        elif part == "reasoning":
            message |= {"reasoning_content": text, "content": "Done."}
        else:
            arguments = {"path": "a/b.c", "text": text, "mode": 420}
            call = {"id": "call_0", "type": "function", "function": {"name": "write_file", "arguments": arguments}}
            message |= {"content": "I write it.", "tool_calls": [call]}
        prompt = codec.encode([{"role": "user", "content": "Go on."}], tools=TOOLS)
        completion = codec.compose(message, prompt)
        written = text if text in completion else json.dumps(text, ensure_ascii=False)[1:-1]
        start = completion.index(written)
        pieces = [completion[at : at + PIECE] for at in range(0, len(completion), PIECE)]
        begin, end = -(-start // PIECE), (start + len(written)) // PIECE
        tenth = (end - begin) // 10
        first, last = slice(begin, begin + tenth), slice(end - tenth, end)
        return cls(name, part, text, prompt.text, completion, pieces, first, last)

    def said_by(self, message: dict[str, Any]) -> str | None:
        """What the message holds where the text was."""
        if self.part != "argument":
            return message.get("reasoning_content" if self.part == "reasoning" else "content")
        arguments = message["tool_calls"][0]["function"]["arguments"]
        return (json.loads(arguments) if isinstance(arguments, str) else arguments)["text"]


Parser = tuple[Callable[[str], object], Callable[[], dict[str, Any]]]
"""What takes a piece, and what ends the output and gives the message."""


def ours(codec: chatcodec.Codec, case: Case) -> Parser:
    decoder = codec.decoder(case.prompt, TOOLS)

    def end() -> dict[str, Any]:
        decoder.close()
        return decoder.message

    return decoder.feed, end


def theirs(case: Case) -> Parser | None:
    """None where transformers is not installed."""
    try:
        from transformers.utils.chat_parsing import ResponseParser
    except ImportError:
        return None
    parser = ResponseParser(RESPONSE_TEMPLATES[case.name], prefix=case.prompt, tools=TOOLS)
    return parser.feed, lambda: parser.finalize()[0]


@dataclass
class Figures:
    """Microseconds a piece; the best of what was added."""

    first: float = 1e9
    last: float = 1e9
    all: float = 1e9
    at_once: float = 1e9

    def add(self, case: Case, make: Callable[[], Parser]) -> None:
        gc.collect()
        clock, pieces = time.process_time, case.pieces
        started = clock()
        feed, end = make()
        times = [clock() - started]
        for part in (slice(0, case.first.start), case.first, slice(case.first.stop, case.last.start), case.last):
            piece_row = pieces[part]
            started = clock()
            for piece in piece_row:
                feed(piece)
            times.append(clock() - started)
        started = clock()
        for piece in pieces[case.last.stop :]:
            feed(piece)
        message = end()
        times.append(clock() - started)
        check(case, message)
        tenth = (case.first.stop - case.first.start) / 1e6
        self.first = min(self.first, times[2] / tenth)
        self.last = min(self.last, times[4] / tenth)
        self.all = min(self.all, sum(times) / len(pieces) * 1e6)

    def add_at_once(self, case: Case, make: Callable[[], Parser]) -> None:
        started = time.process_time()
        feed, end = make()
        feed(case.completion)
        message = end()
        self.at_once = min(self.at_once, (time.process_time() - started) / len(case.pieces) * 1e6)
        check(case, message)


def check(case: Case, message: dict[str, Any]) -> None:
    if case.said_by(message) != case.text:
        raise ValueError("other text")


def row(codec: chatcodec.Codec, case: Case, *, with_rival: bool) -> None:
    own, rival = Figures(), Figures()
    runs = max(2, min(40, 400_000 // len(case.text)))
    rival_runs = (1 if len(case.text) > LONG else runs) if with_rival and theirs(case) else 0
    wrong = ""
    for run in range(runs):
        own.add(case, lambda: ours(codec, case))
        own.add_at_once(case, lambda: ours(codec, case))
        if run < rival_runs and not wrong:
            try:
                rival.add(case, lambda: theirs(case))  # type: ignore[arg-type, return-value]
                if len(case.text) <= LONG:
                    rival.add_at_once(case, lambda: theirs(case))  # type: ignore[arg-type, return-value]
            except Exception as error:
                wrong = str(error)[:40] or type(error).__name__
    line = f"{case.name:14}{case.part:10}{len(case.text):>9,}{told(own)}"
    if wrong or not rival_runs:
        print(f"{line} {wrong or '-':>32}", flush=True)
    else:
        at_once = f"{rival.at_once / own.at_once:8.1f}x" if len(case.text) <= LONG else f"{'-':>9}"
        print(f"{line}{told(rival)}{rival.all / own.all:7.1f}x{at_once}", flush=True)


def told(figures: Figures) -> str:
    first, last = figures.first, figures.last
    at_once = f"{figures.at_once:8.3f}" if figures.at_once < 1e9 else f"{'-':>8}"
    return f"{first:8.2f}{last:8.2f}{last / first:6.2f}x{figures.all:8.2f}{at_once}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1 K and 64 K characters only")
    parser.add_argument("--formats", nargs="+", default=list(builtin_names()), choices=builtin_names())
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--sizes", type=int, nargs="+", help="characters; default: 1 000, 64 000 and 1 000 000")
    parser.add_argument("--alone", action="store_true", help="without transformers")
    options = parser.parse_args()
    sizes = options.sizes or ([1_000, 64_000] if options.quick else [1_000, 64_000, 1_000_000])
    columns = f"{'first':>8}{'last':>8}{'':7}{'all':>8}{'at once':>8}"
    print(f"{'microseconds a piece':33}{'chatcodec':>39}{'transformers':>39}{'all':>8}{'at once':>9}")
    print(f"{'format':14}{'part':10}{'size':>9}{columns}{columns}{'':>8}")
    for name in options.formats:
        codec = chatcodec.load(name)
        for part in options.parts:
            if part == "reasoning" and codec.format.reasoning is None:
                print(f"{name:14}{part:10}{'the format has none':>29}")
                continue
            for size in sizes:
                row(codec, Case.of(codec, name, part, size), with_rival=not options.alone)


if __name__ == "__main__":
    main()
