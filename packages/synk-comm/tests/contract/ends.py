"""Checks of how a group ends, each of which ends the one that it is given."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from functools import partial
from typing import Any, Callable

import numpy as np

from synk_comm.abc import Communicator
from synk_comm.exceptions import (
    AbortedError,
    ClosedError,
    CommError,
    CommTimeout,
    MismatchError,
    PeerLost,
)

from .tools import Check, equal, raises, until

Wait = Callable[[Communicator], Any]
_SOON_S = 0.1
"""Seconds until the others wait: a rank that ends a wait lets it begin."""


def _twice(comm: Communicator) -> Any:
    # Word of the end may still be under way, and a late rank may complete what the others began.
    return [comm.barrier(), comm.barrier()]


def end_by_another_thread(comm: Communicator) -> None:
    if comm.rank == 0:
        timer = threading.Timer(_SOON_S, comm.abort, ["stop"])
        timer.start()
        raises(AbortedError, "stop", comm.barrier)
        timer.join()
    else:
        time.sleep(2 * _SOON_S)
        raises(AbortedError, "stop", lambda: _twice(comm))


def end_by_close_in_another_thread(comm: Communicator) -> None:
    if comm.rank == 0:
        timer = threading.Timer(_SOON_S, comm.close)
        timer.start()
        raises(AbortedError, "closed", comm.barrier)
        timer.join()
        raises(ClosedError, "closed", comm.barrier)
        assert "closed" in repr(comm)
    else:
        time.sleep(2 * _SOON_S)
        raises(AbortedError, "closed by another thread", lambda: _twice(comm))


def end_by_exception(comm: Communicator) -> None:
    """A rank that leaves a with block by an exception sends it to the others."""
    last = comm.size - 1
    if comm.rank == last:
        with contextlib.suppress(KeyError), comm:
            raise KeyError("weights")
        raises(ClosedError, "", comm.barrier)
    else:
        caught = raises(AbortedError, f"rank {last}: KeyError: 'weights'", lambda: _twice(comm))
        assert (caught.rank, caught.reason) == (last, "KeyError: 'weights'")


def end_after_a_mismatch(comm: Communicator) -> None:
    """An error that all ranks have raised is not raised again."""

    def leave() -> None:
        with comm:
            comm.all_reduce(np.ones(3 + comm.rank))

    error = raises(MismatchError, "different shapes", leave)
    assert list(error.calls) == list(range(comm.size))
    raises(ClosedError, "", comm.barrier)


def end_by_timeout(comm: Communicator) -> None:
    """A timeout names the missing ranks, and no others; a late rank gets an error."""
    last = comm.size - 1
    comm.all_reduce(np.ones(3), "max")
    if comm.rank == last:
        time.sleep(8 * _SOON_S)
        raises(AbortedError, "CommTimeout", lambda: _twice(comm))
        return
    error = raises(CommError, "", lambda: comm.barrier(timeout_s=0.3))
    if isinstance(error, CommTimeout):
        assert list(error.missing) == [last]
        assert f"rank {last}: last entered call #" in str(error)
        assert "all_reduce(max" in error.missing[last]
        assert re.match(rf"rank {comm.rank} waited 0\.\d+ s in call", str(error))
        assert isinstance(error, TimeoutError)
    else:  # another rank's time was up a little earlier
        assert isinstance(error, AbortedError)
        assert "CommTimeout" in str(error)
    raises(AbortedError, "CommTimeout", comm.barrier)


def end_in_half_a_letter(comm: Communicator) -> None:
    """The message after one that was sent by half is not taken for the rest of it."""
    letter = np.ones(30_000_000, "u1")
    if comm.rank == 0:
        raises(CommTimeout, "rank 1", lambda: comm.send(letter, 1, timeout_s=0.1))
        raises(AbortedError, "CommTimeout", lambda: comm.send(letter, 1, timeout_s=0.1))
    else:
        # Some back-ends hear of the end only in a call; this is enough for them on a busy machine.
        patience = time.monotonic() + 30 * _SOON_S
        ended = getattr(comm, "ended", lambda: None)
        while ended() is None and time.monotonic() < patience:
            time.sleep(_SOON_S)
        raises(AbortedError, "CommTimeout", lambda: [comm.recv(0), comm.recv(0)])


def end_after_the_last_collective(comm: Communicator) -> None:
    """A rank that leaves after its last collective does not spoil it for the others."""
    with comm:
        total = comm.all_reduce(np.ones(100_000))
    equal(total, np.full(100_000, float(comm.size)))


def end_after_a_letter(comm: Communicator) -> None:
    """What was sent before close can still be received, and then the sender is gone."""
    if comm.rank == 0:
        comm.send(np.arange(500), 1, tag=2)
        comm.close()
    elif comm.rank == 1:
        time.sleep(_SOON_S)
        equal(comm.recv(0, tag=2), np.arange(500))
        raises(PeerLost, "rank 0", lambda: comm.recv(0, tag=2))


def end_after_a_request(comm: Communicator) -> None:
    """A rank that leaves stays until its message is out, if somebody is there to take it."""
    letter = np.arange(30_000_000, dtype="u4").astype("u1")
    if comm.rank == 0:
        with comm:
            gone = comm.isend(letter, 1, tag=2)
            expected = comm.irecv(1)
        assert gone.test()
        assert gone.wait() is None
        raises(ClosedError, "closed", expected.test)
        raises(ClosedError, "closed", expected.wait)
    elif comm.rank == 1:
        time.sleep(_SOON_S)
        equal(comm.recv(0, tag=2), letter)
        raises(PeerLost, "rank 0", lambda: comm.recv(0, tag=2))


def end_with_collectives_under_way(comm: Communicator) -> None:
    """A rank that leaves stays until its collectives are done, by all of its group."""
    x = np.full(100_003, comm.rank + 1.0)
    with comm:
        comm.ibarrier().wait()
        if comm.rank == 0:
            time.sleep(_SOON_S)
        out = np.zeros(100_003)
        requests = [comm.iall_reduce(x), comm.iall_gather(np.array(comm.rank))]
        comm.iall_reduce(x, out=out)  # nobody keeps its request
    total = np.full(100_003, comm.size * (comm.size + 1) / 2)
    for _ in range(2):
        assert all(request.test() for request in requests)
        equal(requests[0].wait(), total)
        assert [int(one) for one in requests[1].wait()] == list(range(comm.size))
    equal(out, total)


def end_by_exception_with_collectives_under_way(comm: Communicator) -> None:
    """A rank that leaves by an exception does not wait for its collectives."""
    last = comm.size - 1
    comm.ibarrier().wait()
    began = time.monotonic()
    if comm.rank == last:
        with contextlib.suppress(KeyError), comm:
            request = comm.iall_reduce(1)
            raise KeyError("weights")
        raises(AbortedError, "KeyError: 'weights'", request.wait)
    else:
        raises(AbortedError, "KeyError: 'weights'", lambda: _twice(comm))
    assert time.monotonic() - began < 50 * _SOON_S


def _end_of_begun(how: str, where: str) -> Check:
    """Return an end of what some ranks have begun, which is noticed in it, or in another call."""
    error = PeerLost if how == "close" else AbortedError

    def leave(comm: Communicator) -> None:
        with contextlib.suppress(KeyError), comm:
            if how == "abort":
                comm.abort("no more")
            elif how == "exception":
                raise KeyError("no more")

    def end(comm: Communicator) -> None:
        comm.ibarrier().wait()
        last = comm.size - 1
        if comm.rank == last:
            for rank in range(last):
                comm.recv(rank)
            leave(comm)
            return
        request = comm.iall_reduce(np.zeros(100_003))
        comm.send(1, last)
        text = f"rank {last}" if how == "close" else "no more"
        calls = [request.wait, comm.barrier, request.test, lambda: comm.iall_reduce(1).wait()]
        for call in calls if where == "it" else [calls[1], calls[0], calls[3]]:
            assert raises(error, text, call).rank == last

    end.__name__ = f"end_of_begun_by_{how}_seen_in_{where}"
    return end


def end_before_a_request_is_received(comm: Communicator) -> None:
    """A rank does not wait for one that has left, nor in a group that has ended."""
    last = comm.size - 1
    if comm.rank == last:
        comm.barrier()
        time.sleep(_SOON_S)
        if comm.size > 2:
            comm.abort("enough")
        comm.close()
        return
    comm.isend(np.zeros(30_000_000, "u1"), last)
    got = comm.irecv(last)
    comm.barrier()
    began = time.monotonic()
    comm.close()
    assert time.monotonic() - began < 50 * _SOON_S
    raises(ClosedError, "closed", got.test)


def end_and_everything_is_refused(comm: Communicator) -> None:
    """No method of a closed communicator does anything, or waits."""
    if comm.size > 2:  # else the first non-blocking collective is refused, too
        comm.ibarrier().wait()
    comm.close()
    x, peer, root = np.ones(3), (comm.rank + 1) % comm.size, comm.rank
    each: list[Any] = [x] * comm.size
    collectives: dict[str, tuple[Any, ...]] = {
        "barrier": (),
        **dict.fromkeys(["all_reduce", "reduce", "broadcast", "gather", "all_gather"], (x,)),
        **dict.fromkeys(["reduce_scatter", "all_to_all"], (each,)),
        "scatter": (each, root),
        "send": (x, peer),
        "recv": (peer,),
    }
    others: dict[str, tuple[Any, ...]] = {
        **{f"i{name}": arguments for name, arguments in collectives.items()},
        **dict.fromkeys(["broadcast_object", "gather_object", "all_gather_object"], (1,)),
        "scatter_object": (each, root),
        "all_to_all_object": (each,),
        "send_object": (1, peer),
        "recv_object": (peer,),
        "split": (0,),
        "decline": ("no",),
    }
    for name, arguments in {**collectives, **others}.items():
        raises(ClosedError, "closed", partial(getattr(comm, name), *arguments))
    comm.abort("too late")
    comm.close()


def end_with_two_threads(comm: Communicator) -> None:
    """A second thread is refused; the first one's collective goes on."""
    for warm in (0, 3):
        for _ in range(warm):
            comm.barrier()
        if comm.rank == comm.size - 1:
            time.sleep(3 * _SOON_S)
            comm.barrier()
            continue
        first = threading.Thread(target=comm.barrier, daemon=True)
        first.start()
        time.sleep(_SOON_S)
        raises(RuntimeError, "another thread", comm.barrier)
        raises(RuntimeError, "another thread", lambda: comm.send(np.ones(1), comm.size - 1))
        raises(RuntimeError, "another thread", lambda: comm.all_reduce(np.ones(1)))
        raises(RuntimeError, "another thread", comm.ibarrier)
        first.join(10)
        assert not first.is_alive()


_WAITS: dict[str, Wait] = {
    "barrier": lambda comm: comm.barrier(),
    "send": lambda comm: comm.send(np.zeros(30_000_000, "u1"), comm.size - 1),
    "recv": lambda comm: comm.recv(comm.size - 1, tag=3),
    "isend": lambda comm: comm.isend(np.zeros(30_000_000, "u1"), comm.size - 1).wait(),
    "irecv": lambda comm: comm.irecv(comm.size - 1, tag=3).wait(),
    "test": lambda comm: until(comm.irecv(comm.size - 1, out=np.zeros(3)).test),
    "a_large_call": lambda comm: comm.all_reduce(np.zeros(3_000_000)),
    "a_call_again": lambda comm: comm.all_reduce(np.zeros(3)),
    "a_first_begun_call": lambda comm: comm.iall_reduce(np.zeros(3)),
    "decline": lambda comm: comm.decline("no"),
    "split": lambda comm: comm.split(0),
}


def _end_in(which: str, how: str) -> Check:
    """Return an end of a wait; later calls raise on all."""
    wait = _WAITS[which]
    error = {"abort": AbortedError, "close": PeerLost}[how]

    def end(comm: Communicator) -> None:
        for _ in range(3):
            comm.all_reduce(np.zeros(3))
        last = comm.size - 1
        if comm.rank == last:
            time.sleep(_SOON_S)
            if how == "abort":
                comm.abort("no more")
                comm.abort("and once more")
                raises(AbortedError, "no more", comm.barrier)
            else:
                comm.close()
                comm.close()
                raises(ClosedError, "", comm.barrier)
            return
        caught = raises(error, "no more" if how == "abort" else f"rank {last}", lambda: wait(comm))
        assert caught.rank == last
        for _ in range(2):
            raises(error, "", lambda: comm.all_reduce(np.ones(3)))
        assert how == "close" or (caught.reason == "no more" and "aborted" in repr(comm))

    end.__name__ = f"end_in_{which}_by_{how}"
    return end


ENDS: list[Check] = [
    end_by_another_thread,
    end_by_close_in_another_thread,
    end_by_exception,
    end_after_a_mismatch,
    end_by_timeout,
    end_in_half_a_letter,
    end_after_the_last_collective,
    end_after_a_letter,
    end_after_a_request,
    end_with_collectives_under_way,
    end_by_exception_with_collectives_under_way,
    *(
        _end_of_begun(how, where)
        for how, where in (("abort", "another"), ("close", "it"), ("exception", "another"))
    ),
    end_before_a_request_is_received,
    end_and_everything_is_refused,
    end_with_two_threads,
    *(_end_in(which, ("abort", "close")[number % 2]) for number, which in enumerate(_WAITS)),
]
