"""Each hostile template ends as a `TemplateError`, soon and small, and does no harm to what comes after it.

A template runs in a process of its own, forked from a server that has chatcodec loaded and little else, so
that one that hangs or crashes is an outcome like another. `python tests/test_hostile.py` runs the tables and
prints what each template took; `--engine jinja2` does the same with the template as transformers compiles it.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import hostile_templates
import pytest
from hostile_templates import BOMBS, BOUNDED, ESCAPES, HARMLESS, MESSAGES

SECONDS = 2.0  # of CPU time, marked in the printed table; no assertion, as machines differ
MEGABYTES = 300.0
CPU_LIMIT = 15  # seconds of CPU time until a template that hangs is killed; of a clock on the wall, so many:
WALL_SECONDS = 120.0
ADDRESS_SPACE = 600 << 20
MODES = ("render", "trace")
TABLES = ("ESCAPES", "BOMBS", "BOUNDED", "HARMLESS")

BENIGN = "{% for m in messages %}<{{ m.role|upper }}>{{ m['content'] ~ '' }}{{ loop.index }}\n{% endfor %}"
BENIGN_MESSAGES = [{"role": "user", "content": "Hi "}, {"role": "assistant", "content": "Hello"}]
BENIGN_TEXT = "<USER>Hi 1\n<ASSISTANT>Hello2\n"

Report = dict[str, Any]
"""What became of one template: `outcome` ("text", "TemplateError", the name of another error, "timeout" or
"died"), `detail` and its `size`, `seconds` of CPU time, `megabytes` (the peak of the whole process), whether
the messages are `unchanged`, and what was wrong with a `benign` template after it."""


# The server: one request a line in, one report a line out.


def engine(name: str) -> tuple[Callable[[str, str, dict[str, Any]], str], type[Exception]]:
    """A function from (source, mode, variables) to the text, and the error that hostile ones end in."""
    if name == "jinja2":
        from jinja2 import TemplateError as JinjaError
        from transformers.utils.chat_template_utils import _compile_jinja_template

        def run_jinja(source: str, mode: str, variables: dict[str, Any]) -> str:
            return str(_compile_jinja_template(source).render(**variables))

        return run_jinja, JinjaError

    from chatcodec.errors import TemplateError
    from chatcodec.template import Template

    def run(source: str, mode: str, variables: dict[str, Any]) -> str:
        template = Template(source)
        if mode == "render":
            return template.render(**variables)
        traced = template.trace(**variables)
        return getattr(traced, "text", traced) + ""

    run(BENIGN, "trace", {"messages": BENIGN_MESSAGES})  # what is loaded at first use is not the template's doing
    return run, TemplateError


def source_of(table: str, name: str) -> str:
    entry = getattr(hostile_templates, table)[name]
    return entry if isinstance(entry, str) else entry[0]


def examine(engine_name: str, table: str, name: str, mode: str) -> Report:
    """Runs one template in this process."""
    import resource

    run, expected_error = engine(engine_name)
    source = source_of(table, name)
    messages = copy.deepcopy(MESSAGES)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT, CPU_LIMIT + 1))
    started = time.process_time()
    detail = ""
    try:
        detail = run(source, mode, {"messages": messages, "tools": None, "add_generation_prompt": True})
        outcome = "text"
    except BaseException as error:
        outcome = "TemplateError" if isinstance(error, expected_error) else type(error).__name__
        try:
            detail = f"{type(error).__name__}: {error}"
        except BaseException as unprintable:
            outcome = "unprintable"
            detail = f"{type(error).__name__}, printed: {type(unprintable).__name__}"
    seconds = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size, detail = len(detail), detail[:500]
    benign = ""
    try:
        for each in MODES:
            text = run(BENIGN, each, {"messages": BENIGN_MESSAGES})
            benign = benign or ("" if text == BENIGN_TEXT else f"{each} gives {text!r}")
    except BaseException as error:
        benign = f"{type(error).__name__}: {error}"
    return {
        "outcome": outcome,
        "detail": detail,
        "size": size,
        "seconds": seconds,
        "megabytes": peak / (1 << 20 if sys.platform == "darwin" else 1 << 10),
        "unchanged": messages == MESSAGES,
        "benign": benign,
    }


def fork_and_examine(request: dict[str, Any]) -> Report:
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(readable)
            report = examine(request["engine"], request["table"], request["name"], request["mode"])
            with os.fdopen(writable, "w") as pipe:
                json.dump(report, pipe)
        finally:
            os._exit(0)
    os.close(writable)
    received = b""
    until = time.monotonic() + request["wall"]
    timed_out = False
    while True:
        ready, _, _ = select.select([readable], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            timed_out = True
            os.kill(child, signal.SIGKILL)
            break
        piece = os.read(readable, 1 << 16)
        if not piece:
            break
        received += piece
    os.close(readable)
    _, status, usage = os.wait4(child, 0)
    if received and not timed_out:
        received_report: Report = json.loads(received)
        return received_report
    killed_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    timed_out = timed_out or killed_by == signal.SIGXCPU
    how = f"killed by signal {killed_by}" if killed_by else "no report"
    return {
        "outcome": "timeout" if timed_out else "died",
        "detail": "" if timed_out else how,
        "size": 0,
        "seconds": usage.ru_utime + usage.ru_stime,
        "megabytes": usage.ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10),
        "unchanged": True,
        "benign": "not run",
    }


def serve(engine_name: str) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    engine(engine_name)
    for line in sys.stdin:
        print(json.dumps(fork_and_examine(json.loads(line))), flush=True)


class Server:
    """The server process, from the side of its client."""

    def __init__(self, engine_name: str = "chatcodec") -> None:
        self.engine = engine_name
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--serve", "--engine", engine_name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def report(self, table: str, name: str, mode: str, wall: float = WALL_SECONDS) -> Report:
        request = {"engine": self.engine, "table": table, "name": name, "mode": mode, "wall": wall}
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the server of hostile templates did not start"
        report: Report = json.loads(line)
        return report

    def close(self) -> None:
        self.process.communicate()


# The tests.

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="templates run in forked processes")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.close()


def check_bounds(report: Report) -> None:
    assert report["megabytes"] < MEGABYTES, report
    assert report["unchanged"], "the messages were changed"
    assert not report["benign"], f"a benign template after it: {report['benign']}"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ESCAPES)
def test_escape_is_an_error(server: Server, name: str, mode: str) -> None:
    report = server.report("ESCAPES", name, mode)
    assert report["outcome"] == "TemplateError", report
    check_bounds(report)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", BOMBS)
def test_bomb_is_an_error(server: Server, name: str, mode: str) -> None:
    report = server.report("BOMBS", name, mode)
    assert report["outcome"] == "TemplateError", report
    check_bounds(report)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", BOUNDED)
def test_bounded_is_bounded(server: Server, name: str, mode: str) -> None:
    report = server.report("BOUNDED", name, mode)
    assert report["outcome"] in ("text", "TemplateError"), report
    check_bounds(report)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_renders_as_in_jinja2(server: Server, name: str, mode: str) -> None:
    report = server.report("HARMLESS", name, mode)
    assert (report["outcome"], report["detail"]) == ("text", HARMLESS[name][1])
    check_bounds(report)


def test_tables_are_apart() -> None:
    names = [name for table in TABLES[:3] for name in getattr(hostile_templates, table)]
    assert len(names) == len(set(names))
    sources = Counter(source_of(table, name) for table in TABLES[:3] for name in getattr(hostile_templates, table))
    assert not [source[:200] for source, count in sources.items() if count > 1]


# The tables of figures.


def fault(table: str, name: str, report: Report) -> str:
    """What is wrong with a report, briefly; nothing if all is well."""
    expected = {"ESCAPES": {"TemplateError"}, "BOMBS": {"TemplateError"}, "HARMLESS": {"text"}}
    faults = []
    if report["outcome"] not in expected.get(table, {"text", "TemplateError"}):
        faults.append("outcome")
    elif table == "HARMLESS" and report["detail"] != HARMLESS[name][1]:
        faults.append("text")
    if report["seconds"] >= SECONDS:
        faults.append("time")
    if report["megabytes"] >= MEGABYTES:
        faults.append("memory")
    if not report["unchanged"]:
        faults.append("changed")
    if report["benign"]:
        faults.append("benign")
    return " ".join(faults)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run hostile templates and print what each one took.")
    parser.add_argument("names", nargs="*", help="only templates whose name contains one of these")
    parser.add_argument("--engine", choices=("chatcodec", "jinja2"), default="chatcodec")
    parser.add_argument("--table", choices=TABLES, action="append", help="default: all")
    parser.add_argument("--mode", choices=MODES, action="append", help="default: both (jinja2: render)")
    parser.add_argument("--wall", type=float, default=WALL_SECONDS, help="seconds before a template is killed")
    parser.add_argument("--jobs", type=int, default=1, help="templates at a time")
    parser.add_argument("--faults", action="store_true", help="print only what breaks a rule")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.engine)
        return

    modes = options.mode or (["render"] if options.engine == "jinja2" else MODES)
    cases = [
        (table, name, mode)
        for table in options.table or TABLES
        for name in getattr(hostile_templates, table)
        for mode in modes
        if not options.names or any(part in name for part in options.names)
    ]
    servers: SimpleQueue[Server] = SimpleQueue()
    for _ in range(options.jobs):
        servers.put(Server(options.engine))

    def run(case: tuple[str, str, str]) -> Report:
        server = servers.get()
        try:
            return server.report(*case, wall=options.wall)
        finally:
            servers.put(server)

    with ThreadPoolExecutor(options.jobs) as pool:
        reports = dict(zip(cases, pool.map(run, cases), strict=True))
    for _ in range(options.jobs):
        servers.get().close()

    print(f"{'table':8} {'name':26} {'mode':6} {'outcome':14} {'seconds':>8} {'MB':>6}  fault; detail")
    counts: Counter[tuple[str, str]] = Counter()
    for (table, name, mode), report in sorted(reports.items(), key=lambda item: item[1]["seconds"]):
        wrong = fault(table, name, report)
        counts[table, report["outcome"]] += 1
        counts[table, "(faulty)"] += bool(wrong)
        if wrong or not options.faults:
            figures = f"{report['outcome']:14} {report['seconds']:8.3f} {report['megabytes']:6.0f}"
            detail = repr(report["detail"][:90]) + (f" ({report['size']:,})" if report["size"] > 90 else "")
            print(f"{table:8} {name:26} {mode:6} {figures}  {wrong + '; ' if wrong else ''}{detail}")
    print()
    for (table, outcome), count in sorted(counts.items()):
        print(f"{table:8} {outcome:16} {count:5}")


if __name__ == "__main__":
    main()
