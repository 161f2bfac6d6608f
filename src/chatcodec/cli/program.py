"""The command line as a whole: its commands, its parser, and `main`, which runs it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .. import __version__
from ..errors import ChatCodecError
from .decode import DECODE
from .encode import ENCODE
from .info import FORMAT, INFO
from .outputs import PROGRAM, say_error
from .samples import SAMPLES
from .serve import SERVE
from .show import DEMO, SHOW

COMMANDS = (ENCODE, DECODE, SHOW, SAMPLES, FORMAT, INFO, SERVE, DEMO)


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    top = argparse.ArgumentParser(
        PROGRAM,
        description="A model's chat template, read in both directions: messages become the prompt, and every piece\n"
        "tells who wrote it; what the model writes becomes a message.",
        epilog="examples:\n"
        + "\n".join(command.examples.splitlines()[0] for command in COMMANDS)
        + f"\n\n{PROGRAM} COMMAND --help tells more about a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        sub = commands.add_parser(
            command.name,
            help=command.summary,
            description=command.description,
            epilog=f"examples:\n{command.examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.add_options(sub)
        sub.set_defaults(run=command.run, refuse=sub.error)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (by default the process's own) and returns the exit code."""
    _use_utf8()
    try:
        code = _run(argv)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        code = 141
    except (ChatCodecError, OSError) as error:
        say_error(error)
        code = 1
    _give_up_unwritten()
    return code


def _give_up_unwritten() -> None:
    """Lets go of output that cannot be written, about which Python would complain when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: Sequence[str] | None) -> int:
    top = parser()
    try:
        arguments = top.parse_args(argv)
        if hasattr(arguments, "run"):
            code: int = arguments.run(arguments)
            return code
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2
    top.print_help(sys.stderr)
    return 2


def _use_utf8() -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
