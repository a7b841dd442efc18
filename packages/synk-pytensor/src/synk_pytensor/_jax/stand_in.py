"""Stand-ins for GPUs, for tests: JAX's CPU device in each rank.

All is as on GPUs, but the ranks' host memory takes the place of NCCL.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, List, Optional, Sequence

import jax
import numpy as np

from .reductions import ProgramGroup


class HostGroup(ProgramGroup):
    """Reduces in host memory, in the thread that performs the order: the ranks' communicator is
    that thread's, and it waits for others as always."""

    def __init__(self, comm: Any) -> None:
        super().__init__(comm)
        self._work: queue.SimpleQueue[Optional[Callable[[], None]]] = queue.SimpleQueue()
        self._programs = ThreadPoolExecutor(1, "stand-in")

    def prepared(self, ops: Sequence[str], shapes: Sequence[Any]) -> Callable[..., None]:  # noqa: ARG002

        def reduced(_context: Any, outs: Any, *buffers: Any) -> None:
            over = threading.Event()

            def work() -> None:
                try:
                    for op, out, buffer in zip(ops, outs, buffers):
                        np.asarray(out)[...] = self.comm.all_reduce(
                            np.array(np.asarray(buffer)), op
                        )
                finally:
                    over.set()

            self._work.put(work)
            over.wait()

        return reduced

    def launch(self, run: Any, leaves: Sequence[Any]) -> List[Any]:
        """Run a program to its end; all ranks do."""
        program = self._programs.submit(lambda: jax.block_until_ready(run(*leaves)))
        program.add_done_callback(lambda _: self._work.put(None))
        failure: Optional[BaseException] = None
        while (work := self._work.get()) is not None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised when the program has ended
                failure = failure or error
        if failure is not None:
            raise failure
        results: List[Any] = program.result()
        return results

    def close(self) -> None:
        self._programs.shutdown(wait=False)
