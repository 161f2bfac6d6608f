"""The command `chatcodec`: the library for the terminal and for shell scripts.

In: arguments, files, standard input. Out: data on standard output, all else on standard error, and an exit code:
0 done, 1 the input or the template is wrong, 2 the arguments are, 130 interrupted, 141 nobody reads the output on.
What holds: the output is UTF-8 with `\\n` as line end, whatever the locale; a prompt that goes to a file or a pipe is
written to the byte; what goes to a terminal holds no control character of the input.

A command is a function from the parsed arguments to an exit code; it stands with its options and its help in a
`Command`, and that in `COMMANDS`.
"""

from .program import COMMANDS, main

__all__ = ["COMMANDS", "main"]
