"""`chatcodec samples`: a data set of conversations to samples that a model is trained on."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from .. import __version__
from ..codec import Codec
from ..errors import ChatCodecError
from ..turn.document import to_document
from .command import Command, source_options, tokenizer_option, turn_options, variable_options
from .dataset.making import TOO_LONG, UNTRAINED, Job, Made, Maker, schema
from .dataset.parts import BAD, Parts, Tally, is_known, is_parquet, opened_parts
from .dataset.rows import ROWS, Batch, batches, is_columnar
from .dataset.workers import in_order
from .inputs import InputError, format_in, name_of, tools_in
from .outputs import Progress, say
from .request import check_tokenizer, load_codec, turn_variables

PROCESSES = 16
"""Most processes that are started unasked."""
REPORTED = 5
"""Bad rows that are told on standard error; all are in the file."""
_OF_THE_DATA = ("data", "data's size", "data's time")
PROBE = "Hello, world! 1234567890 ünï 你好 🎉\n\n\tdef f(x):\n        return [x] * 2  # '' \"\""
"""Text that other vocabularies cut otherwise."""


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    codec = load_codec(arguments, with_format=True)
    check_tokenizer(codec)
    variables = turn_variables(codec, arguments.set)
    codec.format_with(**variables)  # raises what would be wrong with each row
    job = Job(
        source=arguments.source,
        template=arguments.template,
        tokenizer=arguments.tokenizer,
        format=None if arguments.format is None else format_in(arguments.format),
        data=name_of(arguments.data),
        tools=None if arguments.tools is None else tools_in(arguments.tools),
        variables=variables,
        turns=arguments.turns,
        max_length=arguments.max_length,
        overflow=arguments.overflow or "drop",
        keep_nulls=not is_columnar(arguments.data) if arguments.nulls is None else arguments.nulls == "keep",
        mask_column=arguments.mask_column,
        columns=is_parquet(arguments.output),
    )
    stamp = _stamp(codec, job, arguments)
    made_with = json.dumps({name: value for name, value in stamp.items() if name not in _OF_THE_DATA})
    columns = schema(job.mask_column, made_with) if job.columns else None
    begun = time.monotonic()
    with opened_parts(arguments.output, stamp, resume=arguments.resume, overwrite=arguments.overwrite) as parts:
        whole = _made(parts, job, arguments)
        parts.join(columns)
    _tell(whole, arguments.output, time.monotonic() - begun)
    return 0 if arguments.allow_bad or not _faults(whole, job) else 1


def _check(arguments: argparse.Namespace) -> None:
    if not is_known(arguments.output):
        arguments.refuse("-o wants a name that ends in .parquet or .jsonl")
    if arguments.overflow and arguments.max_length is None:
        arguments.refuse("--overflow says what becomes of samples that are longer than --max-length: give that too")
    if arguments.resume and arguments.overwrite:
        arguments.refuse("either --resume or --overwrite")
    if arguments.resume and arguments.data == "-":
        arguments.refuse("standard input cannot be read again: --resume wants a file")
    if os.path.realpath(arguments.output) == os.path.realpath(arguments.data):
        arguments.refuse("the output is the data set itself")


def _stamp(codec: Codec, job: Job, arguments: argparse.Namespace) -> dict[str, Any]:
    """What the output depends on, by name."""
    tokenizer = codec.tokenizer
    parts = [
        tokenizer.encode(codec.template.source),
        tokenizer.encode(PROBE),
        sorted(tokenizer.control_tokens().items()),
    ]
    return {
        "chatcodec": __version__,
        **dict(zip(_OF_THE_DATA, _seen(arguments.data), strict=True)),
        "template": _digest([codec.template.source, codec.special_tokens]),
        "tokenizer": f"{tokenizer.engine}, {_digest(parts)}",
        "--batch": arguments.batch,
        "--format": None if job.format is None else _digest(to_document(job.format)),
        "--tools": None if job.tools is None else _digest(job.tools),
        "--set": json.loads(json.dumps(job.variables)),
        "--turns": job.turns,
        "--max-length": job.max_length,
        "--overflow": job.overflow,
        "--nulls": "keep" if job.keep_nulls else "drop",
        "--mask-column": job.mask_column,
    }


def _seen(path: str) -> tuple[str, int | None, int | None]:
    """By what a file is known again."""
    if path == "-":
        return path, None, None
    try:
        found = os.stat(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    return os.path.abspath(path), found.st_size, found.st_mtime_ns


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


# -- the work


def _made(parts: Parts, job: Job, arguments: argparse.Namespace) -> Tally:
    """Makes the samples that are not there yet, and counts all."""
    whole = Tally()
    told = _Telling(job, arguments)

    def missing() -> Iterator[Batch]:
        for batch in batches(arguments.data, arguments.batch):
            if parts.has(batch):
                whole.add(parts.done[batch.first])
            else:
                yield batch

    try:
        with Progress("rows", aside=True) as progress:
            for made in in_order(missing(), partial(Maker, job), arguments.processes):
                parts.keep(made.tally, made.samples)
                whole.add(made.tally)
                told.add(made, whole, progress)
    except (KeyboardInterrupt, ChatCodecError):
        if parts.done and arguments.data != "-":
            say("note", f"{whole.rows:,} rows are done, and kept in {parts.folder}; --resume goes on from there")
        raise
    told.ignored()
    return whole


class _Telling:
    """What people are told while they wait."""

    def __init__(self, job: Job, arguments: argparse.Namespace) -> None:
        self._job = job
        self._name = name_of(arguments.data)
        self._bad = arguments.output + BAD
        self._ignored: set[str] = set()
        self._reports = 0
        self._shown = 0
        self._begun: tuple[float, float, int] | None = None

    def add(self, made: Made, whole: Tally, progress: Progress) -> None:
        self._ignored |= made.ignored
        self._report(made.tally, progress)
        now, share = time.monotonic(), made.share or 0.0
        if self._begun is None:
            self._begun = now, share, whole.rows
        begun, share_then, rows_then = self._begun
        passed = max(now - begun, 1e-9)
        more = f", {(whole.rows - rows_then) / passed:,.0f}/s, {whole.samples:,} samples, {whole.tokens:,} tokens"
        if share > share_then:
            more += f", {share:.0%}, {_duration(passed * (1 - share) / (share - share_then))} left"
        progress.step(whole.rows - self._shown, more)
        self._shown = whole.rows

    def _report(self, tally: Tally, progress: Progress) -> None:
        if self._reports > REPORTED or not _faults(tally, self._job):
            return
        progress.clear()
        for line in tally.bad:
            row = json.loads(line)
            if row["kind"] not in _wanted(self._job):
                self._reports += 1
                if self._reports > REPORTED:
                    say("error", f"more such rows are told in {self._bad} only")
                    return
                say("error", ": ".join(filter(None, (row["where"], row["path"], row["reason"]))))

    def ignored(self) -> None:
        if self._ignored:
            names = ", ".join(map(repr, sorted(self._ignored)))
            say("note", f"{self._name}: ignored, for the template reads no variables of these names: {names}")


def _wanted(job: Job) -> set[str]:
    """The kinds of bad rows that the options ask for."""
    too_long = {TOO_LONG} if job.overflow != "error" else set()
    return {*too_long, UNTRAINED} if job.turns == "flagged" else too_long


def _faults(tally: Tally, job: Job) -> bool:
    return any(kind not in _wanted(job) for kind in tally.left_out)


def _tell(whole: Tally, path: str, seconds: float) -> None:
    rate = f"{_duration(seconds)}, {whole.rows / max(seconds, 1e-9):,.0f} rows/s"
    say(
        "note",
        f"{path}: {whole.samples:,} samples of {whole.rows:,} rows: {whole.tokens:,} tokens, of which "
        f"{whole.trained:,} are trained ({rate})",
    )
    if whole.left_out:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in whole.left_out.most_common())
        say("note", f"{path + BAD}: {whole.left_out.total():,} rows that are not in it, or not whole: {kinds}")


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes / 60:.1f} h"


# -- the command


def default_processes() -> int:
    """As many as this process may use of the machine's processors, up to a limit: each holds a tokenizer."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, PROCESSES)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"at least 1 is wanted, not {number}")
    return number


def _options(parser: argparse.ArgumentParser) -> None:
    source_options(parser)
    parser.add_argument(
        "data",
        metavar="DATA",
        help="the data set: .parquet, .arrow, or .jsonl; a .json file may hold a list of rows; - reads JSON lines from "
        "standard input",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="what to write: a .parquet or a .jsonl file"
    )
    tokenizer_option(parser)
    parser.add_argument("--tools", metavar="FILE", help="a JSON list of tools, in place of the rows' own")
    variable_options(parser)
    turn_options(parser)
    parser.add_argument(
        "--turns",
        choices=("all", "last", "flagged"),
        default="all",
        help="which of the assistant's turns are trained: all; the last one of each row; or those whose message has "
        "a true 'train' (or 'weight'), fields that the template never sees. Of a prompt with its completion, only "
        "turns of the completion. Default: all",
    )
    parser.add_argument("--max-length", metavar="TOKENS", type=_positive, help="the longest sample that is wanted")
    parser.add_argument(
        "--overflow",
        choices=("drop", "truncate", "error"),
        help="what becomes of a longer sample: drop leaves it out; truncate cuts it behind the last turn that fits; "
        "error leaves out its row and counts that as a fault. Default: drop",
    )
    parser.add_argument(
        "--nulls",
        choices=("keep", "drop"),
        help="drop takes keys that are null out of all objects. Default: drop for columns (Parquet, Arrow), keep for "
        "JSON; see below",
    )
    parser.add_argument(
        "--mask-column",
        metavar="NAME",
        default="loss_mask",
        help="another name for the column loss_mask: TRL's SFTTrainer reads assistant_masks",
    )
    parser.add_argument(
        "--processes",
        metavar="N",
        type=_positive,
        default=default_processes(),
        help="how many processes work. Default: one a processor, at most %(default)s here",
    )
    parser.add_argument(
        "--batch",
        metavar="ROWS",
        type=_positive,
        default=ROWS,
        help="how many rows a process is given at a time, which is also what an interruption can cost. "
        "Default: %(default)s",
    )
    parser.add_argument("--resume", action="store_true", help="go on with a run that was interrupted, if there is one")
    parser.add_argument("--overwrite", action="store_true", help="begin from the start, in place of what is there")
    parser.add_argument("--allow-bad", action="store_true", help="exit with 0 though there are bad rows")


SAMPLES = Command(
    name="samples",
    run=run,
    add_options=_options,
    summary="turn a data set into token ids and masks to train on",
    description="""Turns conversations into samples to train a model on: its exact input, and which of its tokens
are the model's own. A conversation gives one sample where the template lets each turn go on from
the one before; where it rewrites history (drops old reasoning, say), it gives as many as needed.

Columns of the output: input_ids (list of int32), loss_mask (list of bool, one a token: true where
the model writes it), source_row (the row of DATA, counted from 0), turn (list of int32: the places
of the messages that are trained). TRL's SFTTrainer takes the file as it is, with
--mask-column assistant_masks.

Rows of DATA have one of these shapes:
  messages                      in OpenAI's shape (TRL, verl)
  prompt, completion            lists of messages; only the completion is trained (TRL)
  prompt, response              the same, or texts of a user and an assistant (verl)
  conversations                 of from and value, with system (ShareGPT), or of role and content
Beside them may stand tools, chat_template_kwargs, and columns named as the template's variables
(enable_thinking). Each of these may be JSON text too. Other columns are ignored.

A trap: in columns of objects (Parquet, Arrow) all rows have the keys that any row has, filled up
with nulls: arguments and schemas of other tools' names. So keys that are null are taken out, unless
--nulls keep says otherwise; an argument that is null on purpose is then lost. Data sets that hold
tools and arguments as JSON text have neither problem.

Bad rows stop nothing and are never dropped silently: OUTPUT.bad.jsonl has each with its number,
where it stands, its kind (not readable, no conversation, refused, nothing to train, too long,
failed), the path and the reason, and the row itself. The exit code is then 1, save where all are
left out as asked for (too long; not flagged), or with --allow-bad.

A run that is interrupted, or killed, keeps what it has done in OUTPUT.parts; --resume goes on from
there, and gives the very file that an uninterrupted run gives. It refuses if the data, the
template, the tokenizer or an option has changed.""",
    examples="""  chatcodec samples ~/models/my-model data.jsonl -o samples.parquet
  chatcodec samples ~/models/my-model data.parquet -o samples.parquet --max-length 8192 --resume
  chatcodec samples my-model/chat_template.jinja data.jsonl -o samples.jsonl --tokenizer my-model/tokenizer.json
  chatcodec samples ~/models/my-model sharegpt.json -o samples.parquet --turns last --set enable_thinking=false
  zcat data.jsonl.gz | chatcodec samples ~/models/my-model - -o samples.parquet --mask-column assistant_masks""",
)
