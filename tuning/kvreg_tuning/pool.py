"""Several workers over one list of tasks: each outcome is handed out as soon as it is there."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
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


def run_all(
    tasks: Sequence[Task], *, workers: int, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[int, Outcome]]:
    """Yield (index of the task, outcome) in the order of completion.

    When the iterator is closed early, tasks that have not begun are dropped and running ones are killed.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(tasks)):
        waiting.put(index)
    done: queue.SimpleQueue[tuple[int, Outcome] | BaseException] = queue.SimpleQueue()
    stop = threading.Event()
    crew = [Worker(environment=environment) for _ in range(max(1, min(workers, len(tasks))))]

    def serve(worker: Worker) -> None:
        try:
            while not stop.is_set():
                try:
                    index = waiting.get_nowait()
                except queue.Empty:
                    return
                task = tasks[index]
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
            item = done.get()
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        for thread in threads:
            thread.join()
