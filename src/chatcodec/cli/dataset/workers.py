"""Work done by several processes, its results in the order of the tasks.

In: tasks, and what makes a worker of a process. Out: results, one a task. What holds: no more tasks are under way than
a few a process; nothing is done twice; a process that dies ends the work with `WorkerDied`, and what a worker raises is
raised here; when the work ends, however it does, no process is left, and none outlives a parent that is killed.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Generic, NamedTuple, TypeVar

from ...errors import ChatCodecError

Task = TypeVar("Task")
Result = TypeVar("Result")

AHEAD = 4
"""How many tasks, for each process, may be done before the one that is waited for."""
PATIENCE = 5.0
"""Seconds for a process to end."""


class WorkerDied(ChatCodecError):
    """A process ended in the middle of its work."""


class _Worker(NamedTuple):
    process: SpawnProcess
    pipe: Connection


def in_order(tasks: Iterable[Task], make: Callable[[], Callable[[Task], Result]], processes: int) -> Iterator[Result]:
    """The results of `make()(task)`, for each task, of at most as many processes as there are tasks.

    `make` is called once in each process; it and all else that goes from one to another is pickled. With a single
    process, or a single task, the work is done in this one.
    """
    rest = iter(tasks)
    first = list(islice(rest, processes))
    if len(first) < 2:
        work = make() if first else None
        for task in (*first, *rest):
            assert work is not None
            yield work(task)
        return
    pool = _Pool[Task, Result](make, len(first))
    try:
        yield from pool.run(first, rest)
    except BaseException:
        pool.stop(kill=True)
        raise
    pool.stop(kill=False)


class _Pool(Generic[Task, Result]):
    def __init__(self, make: Callable[[], Callable[[Task], Result]], processes: int) -> None:
        self._workers: list[_Worker] = []
        self._busy: dict[Connection, tuple[_Worker, int]] = {}
        with _interrupts_ignored():
            for _ in range(processes):
                self._workers.append(_started(make))

    def run(self, first: list[Task], rest: Iterator[Task]) -> Iterator[Result]:
        for worker, (number, task) in zip(self._workers, enumerate(first), strict=True):
            self._give(worker, number, task)
        numbered = enumerate(rest, len(first))
        idle: list[_Worker] = []
        done: dict[int, Result] = {}
        wanted = 0
        while self._busy:
            for pipe in connection.wait(list(self._busy)):
                assert isinstance(pipe, Connection)
                worker, number = self._busy.pop(pipe)
                done[number] = self._received(worker)
                idle.append(worker)
            while wanted in done:
                yield done.pop(wanted)
                wanted += 1
            room = AHEAD * len(self._workers) - len(done) - len(self._busy)
            for number, task in islice(numbered, max(min(room, len(idle)), 0)):
                self._give(idle.pop(), number, task)

    def _give(self, worker: _Worker, number: int, task: Task) -> None:
        try:
            worker.pipe.send(task)
        except OSError:
            raise self._death(worker) from None
        self._busy[worker.pipe] = worker, number

    def _received(self, worker: _Worker) -> Result:
        try:
            result: Result | BaseException = worker.pipe.recv()
        except (EOFError, OSError):
            raise self._death(worker) from None
        if isinstance(result, BaseException):
            raise result
        return result

    def _death(self, worker: _Worker) -> WorkerDied:
        worker.process.join(PATIENCE)
        code = worker.process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        memory = "; the machine may be out of memory: try fewer --processes" if code == -signal.SIGKILL else ""
        return WorkerDied(f"a worker process {how} in the middle of its work{memory}")

    def stop(self, *, kill: bool) -> None:
        for process, pipe in self._workers:
            with suppress(OSError):
                pipe.close()
            if kill:
                process.terminate()
        for process, _ in self._workers:
            process.join(PATIENCE)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()


def _started(make: Callable[[], Callable[[Task], Result]]) -> _Worker:
    # The worker's end of the pipe is in its own hands only: who reads or writes at the other learns of any death.
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, make), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _serve(pipe: Connection, make: Callable[[], Callable[[Task], Result]]) -> None:
    """The life of a worker, which ends when nobody is there any more."""
    with suppress(EOFError, OSError):
        task = pipe.recv()
        try:
            work = make()
        except Exception as error:
            pipe.send(_portable(error))
            return
        while True:
            try:
                answer: Result | Exception = work(task)
            except Exception as error:
                answer = _portable(error)
            pipe.send(answer)
            task = pipe.recv()


def _portable(error: Exception) -> Exception:
    if isinstance(error, ChatCodecError):
        return error
    return WorkerDied(f"a worker process failed: {type(error).__name__}: {error}")


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Processes started meanwhile are not interrupted from the keyboard: they end with their parent's pipe."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not in the main thread, which alone may set signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
