"""The device of a rank: where its functions compute, and how values come to it and from it.

A package that adapts an engine with GPUs of its own derives from `Device`. Its arrays need not be
writable, and its work need not be done, or even begun, when a method returns: `settle` waits until
host memory may change again, `fetch` until results are there.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Callable, ContextManager, List, Mapping, Optional, Protocol, Sequence, Tuple

import numpy as np

import synk_comm
from synk_comm import cuda

DOCTOR = "`synkhronos doctor` shows what is installed, and what to install"

TF32_OVERRIDE = "NVIDIA_TF32_OVERRIDE"
"""Environment variable of CUDA's libraries, which read it when they are first used: "0" is "full
float32 everywhere"."""

Contexts = Mapping[Optional[str], str]
"""The names of a rank's devices, by the names that graphs have for them. None names the default
one, where variables without a target lie and collectives work. Empty for a CPU process."""

REPLAYED = "replayed"
"""State of a launcher that repeats a recording."""

Place = Tuple[int, int, int]
"""The name of a buffer for an upload: the numbers of a function, an input, and its buffer."""


class DeviceUploads(Protocol):
    """Copies of later inputs to a device while it computes."""

    def wait(self, places: Sequence[Place]) -> None:
        """Wait until the arrays that were copied to these buffers last have been read."""

    def start(self, place: Place, array: np.ndarray) -> Any:
        """Start to copy an array, and return an upload for `Device.bring`.

        The array's memory must not change before it is brought and settled.
        """

    def forget(self, function_id: int) -> None:
        """Free the buffers of a function."""


class VectorParts(Protocol):
    """The parts from which a function joins the new value of a variable, a vector."""

    @property
    def pieces(self) -> Sequence[Tuple[int, int, int]]:
        """Return (begin, end, part) of each piece to reduce at once, in the order of computation;
        empty before `learn`, and if pieces are not worth while."""

    @property
    def size(self) -> int:
        """Return the latest number of elements of the vector."""

    def learn(self, itemsize: int) -> None:
        """Expect parts of the sizes of the last execution in later ones."""

    def aimed(self, aim: Any) -> ContextManager[None]:
        """For the duration of the block, put parts into ``aim.vector``, and call ``aim.ready``
        with the next pieces: arrays, or None for those in the vector."""


class Launcher(Protocol):
    """A compiled function as a device launches it.

    Attributes:
        sends_early: whether outputs without axes are results as soon as they are computed.
    """

    sends_early: bool

    def __call__(self, *arguments: Any) -> List[Any]:
        """Return outputs, and update variables."""

    @property
    def state(self) -> str:
        """Return `REPLAYED`, or why the function is not replayed."""

    @property
    def is_possible(self) -> bool:
        """Return whether it is replayed, or may be later."""

    def close(self) -> None:
        """Drop the recording."""


class Device:
    """A rank's device. This class is the processor, where nothing is copied.

    Attributes:
        name: as in "cuda0".
        precision: of float32; "" where there is no choice.
        is_gpu: whether values have to be brought to it.
        takes_collectives: whether the communicator takes its arrays.
        is_functional: whether its arrays are never written, and its functions are compiled for the
            shapes of their arguments: collectives return new arrays.
        uploads: copies inputs while the device computes; None if it cannot.
        apart: makes a block that no signal interrupts, because other ranks rely on its end.
    """

    name = "cpu"
    precision = ""
    is_gpu = False
    takes_collectives = False
    is_functional = False
    uploads: Optional[DeviceUploads] = None
    apart: Callable[[], ContextManager[None]] = staticmethod(nullcontext)

    def connect(self, comm: synk_comm.Communicator) -> Any:
        """Return the communicator for values, given that for host memory; all ranks call it."""
        return comm

    def takes(self, values: Sequence[Any], reducible: bool = False) -> bool:  # noqa: ARG002 - for other devices
        """Return whether the communicator takes these values where they lie.

        Args:
            reducible: to reduce them.
        """
        return False

    def enter(self) -> None:
        """Make this thread fit to compute."""

    def begin(self) -> None:
        """Begin an order: drop results of earlier ones that were not fetched."""

    def flush(self) -> None:
        """Compute, or begin to, what acts of the order under way have left to be computed together.
        If there are collectives among that, it blocks until all ranks have come here."""

    def end(self, results: Sequence[Any]) -> bool:  # noqa: ARG002 - for other devices
        """Do so at the end of an order's acts, for variables and these results of acts alone;
        return whether all ranks are known to have come here."""
        return False

    def undo(self) -> None:
        """Forget it: the order has failed."""

    def close(self) -> None:
        """End the use of the device by a runtime."""

    # ---- functions -------------------------------------------------------------------------

    def adapted(self, function: Any, host_outputs: Sequence[bool]) -> Any:  # noqa: ARG002 - for other devices
        """Return a compiled function that takes and gives the device's arrays where it can.

        Args:
            host_outputs: for each output whether it stays in host memory.
        """
        return function

    def launcher(
        self,
        function: Any,  # noqa: ARG002 - for other devices
        name: str,  # noqa: ARG002
        parts: Optional[VectorParts] = None,  # noqa: ARG002
    ) -> Optional[Launcher]:
        """Return a launcher that is quicker than a call of the function; None if there is none.

        Args:
            parts: of the function, by `in_parts`.
        """
        return None

    def in_parts(self, function: Any, storage: List[Any]) -> Optional[Tuple[Any, VectorParts]]:  # noqa: ARG002 - for other devices
        """Return a function that computes the same and reports the parts of a variable's new value,
        and these; None if it does not just join that value from parts.

        Args:
            storage: of the variable.
        """
        return None

    # ---- copies ----------------------------------------------------------------------------

    def lock(self, array: np.ndarray) -> bool:  # noqa: ARG002 - for other devices
        """Make copies from an array quick for as long as it exists, if possible.

        Returns:
            False if it is too large for that, so that rows should go through a `buffer`.
        """
        return True

    def buffer(self, shape: Tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return a new array in host memory, from which copies are quick."""
        return np.empty(shape, dtype)

    def bring(self, array: Any) -> Any:
        """Return an array of the device with these values, or those of an upload.

        The memory of `array` must not change before `settle`.
        """
        return array

    def argument(self, array: Any) -> Any:
        """As `bring`, of an argument of a function: a small one may come to the device with it."""
        return self.bring(array)

    def settle(self) -> None:
        """Wait until all arrays given to `bring` have been read."""

    def send(self, values: Sequence[Any]) -> List[Any]:
        """Start to copy small results to host memory, ahead of later work; return the values, with
        something for `fetch` in place of those that are copied.
        """
        return list(values)

    def fetch(self, results: List[Any]) -> List[Any]:
        """Return results of acts in host memory; wait for the device.

        Args:
            results: arrays, None, lists of these, or tuples with such `values`.
        """
        return results


def is_of_the_group(error: BaseException) -> bool:
    """Return whether an error is a communicator's, and not that of this rank's device."""
    return isinstance(error, synk_comm.CommError) and not isinstance(error, cuda.CudaError)
