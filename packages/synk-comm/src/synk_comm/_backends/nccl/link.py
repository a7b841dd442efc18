"""One rank's NCCL communicator: its libraries and its device, its start, its guard, and its end.

NCCL waits for ever for ranks that never come or have died. In its non-blocking mode it starts a
thread for every call (45 us, where a small collective takes 7). So it runs in its blocking mode,
its start in a thread of its own, and a guard stops it if a call does not return.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple, Tuple

from synk_comm._collectives.communicator import RoundCommunicator
from synk_comm._core.fabric import SLICE_S, lost
from synk_comm._system.liveness import Identity, Pidfds, identity, machine_name
from synk_comm.abc import Communicator
from synk_comm.cuda import CudaError, Driver, wait_until
from synk_comm.exceptions import CommError, CommTimeout, JoinError, PeerDeclined, PeerLost

_log = logging.getLogger(__name__)

NcclCalls = Sequence[Tuple[Any, ...]]
"""Names of NCCL's functions, each with the arguments before the communicator and the stream."""

_BINDING = "nccl.bindings.nccl"
_ON_HOST = 1  # the memory of a scaled sum's factor
_GUARD_S = 0.05
"""Seconds between two checks of the guard; it ignores shorter calls."""
_GRACE_S = 0.5
"""Seconds that work on the GPU may go on after a peer's process has ended: the peer may have left
after its last call."""
_STOP_S = 1.0
"""Seconds that a failed call waits for NCCL's kernels to stop."""
_LEAVE_S = 2.0
"""Seconds for NCCL to end in order in ``close``, and at the end of the process."""


class NcclError(CommError, RuntimeError):
    """NCCL reported an error."""


class MissingLibrary(CommError, ImportError):
    """nccl4py or NCCL is not installed."""


class NcclSettings(NamedTuple):
    """Settings of a communicator, which its splits inherit: the arguments of ``nccl``."""

    stream: int | None
    device: int | None
    binding: Any
    driver: Any
    why: str


class _Inside(threading.Thread):
    """A thread inside NCCL, which may wait for peers there for ever."""

    def start(self) -> None:
        super().start()
        atexit.register(self.end_with_process)
        if not self.is_alive():
            atexit.unregister(self.end_with_process)

    def run(self) -> None:
        try:
            super().run()
        finally:
            atexit.unregister(self.end_with_process)

    def end_with_process(self) -> None:
        """Wait a while for the end of the thread, at the end of the process."""
        self.join(_LEAVE_S)
        if self.is_alive():
            _leave_libraries()


def _leave_libraries() -> None:
    """Make the process end with its status, but skip the destructors of libraries.

    A thread that is inside NCCL then may crash.
    """
    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # not every C library has it
        libc.on_exit(libc._exit, None)  # the last one registered comes first


def load_binding() -> Any:
    """Return nccl4py's low-level binding, checked to find NCCL itself."""
    try:
        binding = importlib.import_module(_BINDING)
    except ImportError as exc:
        raise MissingLibrary(
            f"back-end nccl needs the package nccl4py ({exc}): pip install 'synk-comm[nccl]', "
            "with Python 3.10 or newer"
        ) from exc
    try:
        binding.get_version()
    except Exception as exc:
        raise MissingLibrary(
            f"NCCL itself, libnccl.so.2, was not found ({exc}): pip install nvidia-nccl-cu13, or "
            "nvidia-nccl-cu12 for CUDA 12, or name its folder in LD_LIBRARY_PATH"
        ) from exc
    return binding


def _introduce(
    host: Communicator, settings: NcclSettings
) -> tuple[Any, Any, int, Sequence[Identity]]:
    """Load the libraries on all ranks; return binding, driver, device, and the ranks' processes."""
    try:
        binding, driver = settings.binding or load_binding(), settings.driver or Driver()
        uuids = tuple([driver.uuid(number) for number in range(driver.device_count())])
        if not uuids:
            raise CudaError("this process sees no CUDA device; see CUDA_VISIBLE_DEVICES")
        wanted = driver.current_device() if settings.device is None else settings.device
        if wanted is not None and not 0 <= wanted < len(uuids):
            raise ValueError(f"device must be 0 to {len(uuids) - 1}, got {wanted}")
        version = int(binding.get_version())
    except (CommError, ValueError) as exc:
        host.decline(f"{type(exc).__name__}: {exc}")
        raise
    mine = machine_name(), wanted, uuids, version, identity()
    try:
        machines, wishes, devices, versions, processes = zip(*host.all_gather_object(mine))
    except PeerDeclined as exc:
        lines = "".join(f"\n  rank {rank}: {text}" for rank, text in exc.reasons.items())
        raise JoinError(f"rank {host.rank} cannot start NCCL, because of{lines}") from None
    if len(set(versions)) > 1:
        lines = ", ".join(f"rank {rank}: {version}" for rank, version in enumerate(versions))
        raise JoinError(f"the ranks have different versions of NCCL ({lines}); install one of them")
    return binding, driver, _devices(machines, wishes, devices)[host.rank], processes


def _devices(
    machines: Sequence[str], wishes: Sequence[int | None], uuids: Sequence[Sequence[str]]
) -> list[int]:
    """Return each rank's device: the one that it asked for, else by turns on each machine."""
    devices: list[int] = []
    users: dict[str, int] = {}
    for rank, (machine, wanted, own) in enumerate(zip(machines, wishes, uuids)):
        place = machines[:rank].count(machine)
        device = place % len(own) if wanted is None else wanted
        first = users.setdefault(own[device], rank)
        if first != rank:
            raise JoinError(
                f"ranks {first} and {rank} would both use the GPU {own[device]} (device "
                f"{device} of rank {rank}), but NCCL needs one for each rank; start fewer ranks, "
                "or give each its own by device= or CUDA_VISIBLE_DEVICES"
            )
        devices.append(device)
    return devices


class Link:
    """One rank's NCCL communicator, which ends together with the host communicator of the ranks.

    To make one is a collective of theirs. A ``Guard`` can end it like a ``Fabric``.
    """

    def __init__(self, host: RoundCommunicator, settings: NcclSettings, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        self.binding, self.driver, self.device, processes = _introduce(host, settings)
        self.rank = host.rank
        self.handle: Any = None
        self._host = host
        self._streams: set[int] = set()
        self._work_is_out = False  # maybe, on streams of other libraries
        self._late: CommError | None = None  # what went wrong in it
        self._lock = threading.Lock()  # of the end, and of the pidfds
        self._pidfds = Pidfds()
        self._ended = threading.Event()
        self._end_thread: _Inside | None = None
        self._inside: tuple[float] | None = None  # the deadline of the call that is in NCCL now
        self._gone_since: float | None = None  # when the end of a peer was noticed
        self._rescue: CommError | None = None  # why the guard stopped it
        for rank, process in enumerate(processes):
            if rank != host.rank:
                self._pidfds.add(rank, process)
        try:
            self._start(deadline)
        except BaseException as exc:
            # The others' waits look at the host communicator.
            self.abort(f"NCCL did not start: {type(exc).__name__}: {exc}")
            raise

    def _start(self, deadline: float) -> None:
        host, binding = self._host, self.binding
        unique_id = b""
        if self.rank == 0:
            try:
                unique_id = bytes(binding.get_unique_id())
            except binding.NCCLError as exc:
                raise JoinError(f"NCCL could not open its port on rank 0: {exc}") from exc
        unique_id = host.broadcast_object(unique_id)
        failed: list[BaseException] = []

        def begin() -> None:
            try:
                with self.driver.entered(self.device):
                    config = binding.Config()
                    config.blocking = 1
                    handle = binding.comm_init_rank_config(
                        host.size, bytearray(unique_id), self.rank, config.ptr
                    )
                with self._lock:
                    self.handle = handle
                    late = self._ended.is_set()
                if late:
                    binding.comm_abort(handle)
            except BaseException as exc:  # noqa: BLE001 - raised below, in the caller's thread
                failed.append(exc)

        # NCCL cannot be stopped yet: it stays behind in its thread if the start fails.
        thread = _Inside(name="synk-comm nccl start", target=begin, daemon=True)
        thread.start()
        while thread.is_alive():
            self._look(self._check_peers, deadline, "starting NCCL")
            thread.join(SLICE_S)
        if failed:
            try:
                self._check_peers()  # the cause
            except CommError as exc:
                raise exc from failed[0]
            raise JoinError(f"NCCL did not start: {failed[0]}") from failed[0]
        threading.Thread(target=self._guard, name="synk-comm nccl guard", daemon=True).start()
        host.barrier(timeout_s=max(deadline - time.monotonic(), 0.001))

    def run(self, calls: NcclCalls, stream: int, deadline: float) -> None:
        """Enqueue calls of NCCL on a stream, as one group."""
        self._streams.add(stream)
        self._issue(calls, stream, deadline)

    def enqueue(self, calls: NcclCalls, stream: int, timeout_s: float) -> None:
        """Do so amid another library's work, in any thread; errors are left to `await_work`."""
        self._work_is_out = True
        if self._late is not None or self._ended.is_set():
            return
        try:
            self._issue(calls, stream, time.monotonic() + timeout_s)
        except CommError as exc:
            self._late = exc

    @contextlib.contextmanager
    def await_work(self, deadline: float) -> Iterator[None]:
        """Bound the block's wait for work with calls of `enqueue`; raise what went wrong in it."""
        self._inside = (deadline,)
        try:
            yield
        finally:
            self._inside = None
        late = self._rescue or self._late
        if late is not None:
            raise late

    def _issue(self, calls: NcclCalls, stream: int, deadline: float) -> None:
        binding, handle = self.binding, self.handle
        outer, self._inside = self._inside, (deadline,)
        try:
            if len(calls) == 1:
                name, *arguments = calls[0]
                getattr(binding, name)(*arguments, handle, stream)
            elif calls:
                binding.group_start()
                try:
                    for name, *arguments in calls:
                        getattr(binding, name)(*arguments, handle, stream)
                finally:
                    binding.group_end()
            status = binding.comm_get_async_error(handle)
        except binding.NCCLError as exc:
            raise self._rescue or self._failure(str(exc)) from exc
        finally:
            self._inside = outer
        if self._rescue is not None:
            raise self._rescue
        if status:
            raise self._failure(binding.get_error_string(status))

    def _guard(self) -> None:
        """Stop NCCL if a call, or its work on the GPU, will never end.

        A library's own wait for the GPU would last for ever otherwise. Nothing here calls CUDA,
        which may hang.
        """
        before = None
        while not self._ended.wait(_GUARD_S):
            inside = self._inside
            try:
                if inside is not None and inside is before:
                    self._look(self._check_peers, inside[0], "a call of NCCL")
                elif inside is None and (self._streams or self._work_is_out):
                    self._check_grace()
            except CommError as exc:
                self._rescue = exc
                self._end("comm_abort", 0.0)
            before = inside

    def _check_grace(self) -> None:
        """Raise if a peer has been gone for too long."""
        try:
            self._check_peers()
            self._gone_since = None
        except PeerLost:
            self._gone_since = self._gone_since or time.monotonic()
            if time.monotonic() - self._gone_since > _GRACE_S:
                raise

    @contextlib.contextmanager
    def scaled_sum(self, scalar: bytes, nccl_type: int) -> Iterator[int]:
        """Make a sum that multiplies this rank's operand first, by an element of NCCL's type."""
        binding, handle = self.binding, self.handle
        memory = ctypes.create_string_buffer(scalar, len(scalar))
        start = ctypes.addressof(memory), nccl_type, _ON_HOST
        try:
            op = binding.red_op_create_pre_mul_sum(*start, handle)
        except binding.NCCLError as exc:
            raise self._failure(str(exc)) from exc
        try:
            yield op
        finally:
            # NCCL has read it when the call that uses it returns.
            with contextlib.suppress(binding.NCCLError):
                binding.red_op_destroy(op, handle)

    def _look(self, check: Callable[[], None], deadline: float, doing: str) -> None:
        """Raise if a check of the peers does, or the time is up."""
        check()
        if time.monotonic() >= deadline:
            # NCCL does not name the ranks that it waits for.
            others = {r: "unknown to NCCL" for r in range(self._host.size) if r != self.rank}
            raise CommTimeout(
                f"rank {self.rank} waited too long for other ranks in {doing}", missing=others
            )

    def _check_peers(self) -> None:
        """Raise if a peer's process, or the group, has ended."""
        failure = self.failure()
        if failure is not None:
            raise failure
        with self._lock:
            gone = list(self._pidfds.gone())
        if gone:
            raise lost(gone[0], "its process has ended")

    def _failure(self, text: str) -> CommError:
        """Return the error for NCCL's report: a lost peer if that is the reason."""
        detail = self.binding.get_last_error(self.handle) if self.handle is not None else ""
        patience = time.monotonic() + 0.2  # its sockets may break before its process has ended
        while time.monotonic() < patience:
            try:
                self._check_peers()
            except CommError as exc:
                return exc
            time.sleep(SLICE_S)
        return NcclError(f"NCCL failed: {text}. {detail}".strip())

    def synchronize(self, deadline: float, event: int | None = None) -> None:
        """Wait until the streams have done all work of ``run``, or for an event."""
        driver = self.driver
        with driver.entered(self.device):
            if event is not None:
                self._wait(lambda: driver.has_happened(event), deadline)
                return
            for stream in sorted(self._streams):
                self._wait(lambda stream=stream: driver.is_done(stream), deadline)  # type: ignore[misc]
                self._streams.discard(stream)

    def _wait(self, is_over: Callable[[], bool], deadline: float) -> None:
        self._gone_since = None

        def look() -> None:
            self._look(self._check_grace, deadline, "synchronize()")
            status = self.binding.comm_get_async_error(self.handle)
            if status:
                raise self._failure(self.binding.get_error_string(status))

        wait_until(is_over, look)
        if self._rescue is not None:
            raise self._rescue  # it is over because NCCL was stopped

    def failure(self) -> CommError | None:
        """Return the end of the host communicator."""
        return self._host.ended()

    def abort(self, reason: str) -> None:
        """End both communicators; wait a second at most for NCCL's kernels to stop.

        If the caller freed memory of the device while a kernel waits for a peer, CUDA would lock
        out the thread that stops the kernel, for ever.
        """
        self._host.abort(reason)
        self._end("comm_abort", _STOP_S)

    def lose(self, rank: int) -> None:
        """Do nothing: ``abort`` informs all ranks."""

    def drop(self) -> None:
        """Leave the host communicator; a forked child must not touch NCCL."""
        self._host.close()

    def close(self) -> None:
        """Leave both; NCCL ends in order only after all work."""
        how, wait_s = "comm_abort", _STOP_S
        if self.failure() is None:
            with contextlib.suppress(CommError, OSError):
                self.synchronize(time.monotonic() + _STOP_S)
                how, wait_s = "comm_destroy", _LEAVE_S
        try:
            self._host.close()
        finally:
            self._end(how, wait_s)

    def _end(self, how: str, wait_s: float) -> None:
        """End NCCL, once, in a thread; wait for that, at most for some seconds."""

        def end() -> None:
            try:
                with self.driver.entered(self.device):
                    getattr(self.binding, how)(self.handle)
            except (CommError, self.binding.NCCLError) as exc:
                _log.debug("%s: %s", how, exc)

        with self._lock:
            if not self._ended.is_set():
                self._ended.set()
                if self.handle is not None:
                    started = _Inside(name="synk-comm nccl end", target=end, daemon=True)
                    try:
                        started.start()
                        self._end_thread = started
                    except RuntimeError:  # in `atexit` of Python 3.12.0 none can
                        _leave_libraries()
            thread = self._end_thread
            self._pidfds.close()
        # Also if another thread, such as the guard, was first.
        if thread is not None and not threading.main_thread().is_alive():
            thread.end_with_process()  # in `atexit`, which calls nothing that is registered now
        elif thread is not None and wait_s:
            thread.join(wait_s)
