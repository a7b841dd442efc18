"""Calls that do not wait: their requests, and the methods that begin them."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Callable, cast

from .fabric import again
from .table import Arguments

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")


class Request(ABC):
    """A message or a collective that a method such as ``isend`` or ``iall_reduce`` has begun.

    It goes on even if nobody keeps the request, and keeps its arrays alive. Do not change them, nor
    read ``out``, before ``wait`` has returned, or ``test`` has returned True.

    A message moves on in every call of its communicator that sends or receives one, in ``wait``
    and ``test`` of its messages, and in ``close()``, but in no collective: wait for a message too
    long for the channel before a collective that its receiver enters after it. A collective goes
    on all the time, in a thread.
    """

    _done = False
    _result: Any = None
    _error: BaseException | None = None

    def __init__(self, *what: object) -> None:
        self._what = what

    def wait(self, timeout_s: float | None = None) -> Any:
        """Wait until the call is done.

        An interrupt, such as Ctrl-C, of the wait for a collective ends this wait and nothing else.

        Args:
            timeout_s: None takes, for a message, the communicator's own. A collective has that in
                any case, from the end of those that were begun before it.

        Returns:
            The result of the blocking call, each time: of ``irecv`` the array, of ``isend`` None.

        Raises:
            CommTimeout: ``timeout_s`` is over, and the call under way: it can be waited for again.
                Or a collective took longer than the communicator's own time: the group has ended.
            MismatchError: ``out`` of ``irecv`` does not fit the message, which is lost.
            All other errors of the blocking call.
        """
        self._go_on(timeout_s, once=False)
        if self._error is not None:
            raise again(self._error)
        return self._result

    def test(self) -> bool:
        """Return whether the call is done, without a wait; raise as ``wait``.

        Only for a message whose other rank is gone it waits: pieces may be on the way.
        """
        self._go_on(None, once=True)
        if self._error is not None:
            raise again(self._error)
        return self._done

    @abstractmethod
    def _go_on(self, timeout_s: float | None, *, once: bool) -> None:
        """Wait until the call is done; or only look, ``once``."""

    def __repr__(self) -> str:
        what = " ".join(map(str, self._what))
        return f"<Request {what}, {'done' if self._done else 'pending'}>"


class _Beginning:
    """A stand-in for a communicator in the body of a blocking method: it begins the call."""

    request: Request
    _shortcuts: dict[Any, Any] = {}  # noqa: RUF012 - never written

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def _call(self, kind: str, x: Any, out: Any, _: None, *more: Any) -> None:
        self.request = self._comm._begin(kind, Arguments(x, out, *more))

    def _message(self, sending: bool, array: Any, peer: int, tag: int, _: None) -> None:
        self.request = self._comm._begin_message(sending, array, peer, tag)


def begins(blocking: Callable[P, object]) -> Callable[P, Request]:
    """Return a method that begins the call of a blocking one, with its arguments but ``timeout_s``.

    The body of the blocking one only calls ``_call`` or ``_message``.
    """
    name = f"i{blocking.__name__}"

    def begin(comm: Any, *args: Any, **keywords: Any) -> Request:
        if "timeout_s" in keywords:
            raise TypeError(f"{name}() takes no timeout_s; give it to wait() of the request")
        beginning = _Beginning(comm)
        blocking(beginning, *args, **keywords)  # type: ignore[arg-type]
        return beginning.request

    begin.__name__, begin.__qualname__ = name, f"Communicator.{name}"
    begin.__doc__ = f"Begin a ``{blocking.__name__}``; ``wait`` of the request returns its result."
    signature = inspect.signature(blocking)
    kept = [given for given in signature.parameters.values() if given.name != "timeout_s"]
    method: Any = begin
    method.__signature__ = signature.replace(parameters=kept, return_annotation="Request")
    return cast("Callable[P, Request]", method)
