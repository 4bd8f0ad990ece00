"""Several workers over one list of tasks: each outcome is handed out as soon as it is there."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvreg_tuning.worker import Outcome, Worker


@dataclass(frozen=True, slots=True)
class Task:
    """One call for a worker."""

    function: str
    """`module:function`."""
    arguments: Mapping[str, Any]
    timeout_s: float
    bundle: str = ""
    """Neighbours in the list that share a bundle run one after the other in one process, which may keep what they
    have in common. Empty stands alone."""


def run_all(
    tasks: Sequence[Task],
    *,
    workers: int,
    environment: Mapping[str, str] | None = None,
    own: Sequence[Mapping[str, str]] = (),
    deadline: float | None = None,
    skip: Callable[[int], str | None] = lambda index: None,
) -> Generator[tuple[int, Outcome], None, None]:
    """Yield (index of the task, outcome) in the order of completion.

    At `deadline` (time.monotonic), or when the iterator is closed early, tasks that have not begun are dropped and
    running ones are killed; neither has an outcome. `skip` is asked right before a task begins; where it returns a
    reason the task is not run and has the outcome `skipped`. `own` is laid over the environments of the workers by
    turns: with one of each, worker i alone has own[i].
    """
    waiting: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    bundles = [
        [index for index, _ in members]
        for _, members in itertools.groupby(enumerate(tasks), key=lambda item: item[1].bundle or item[0])
    ]
    for bundle in bundles:
        waiting.put(bundle)
    done: queue.SimpleQueue[tuple[int, Outcome] | BaseException] = queue.SimpleQueue()
    stop = threading.Event()
    shares = own or ({},)
    crew = [
        Worker(environment={**(environment or {}), **shares[number % len(shares)]})
        for number in range(max(1, min(workers, len(bundles))))
    ]

    def serve(worker: Worker) -> None:
        try:
            while not stop.is_set():
                try:
                    bundle = waiting.get_nowait()
                except queue.Empty:
                    return
                for index in bundle:
                    if stop.is_set():
                        return
                    task, reason = tasks[index], skip(index)
                    if reason is not None:
                        done.put((index, Outcome("skipped", error=reason)))
                        continue
                    done.put((index, worker.run(task.function, task.arguments, timeout_s=task.timeout_s, stop=stop)))
        except BaseException as error:  # handed to the caller's thread, which raises it
            done.put(error)
        finally:
            worker.close()

    threads = [threading.Thread(target=serve, args=(worker,), daemon=True) for worker in crew]
    for thread in threads:
        thread.start()
    try:
        for _ in range(len(tasks)):
            try:
                item = done.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        for thread in threads:
            thread.join()
