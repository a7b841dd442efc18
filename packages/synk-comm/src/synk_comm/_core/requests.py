"""Calls that do not wait: the request that they return, and how they are made of those that do."""

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

    It gets done even if nobody keeps the request; its arrays are kept alive until then. Do not
    change them, nor read ``out``, before ``wait`` has returned, or ``test`` has returned True.

    A message moves on in every call of its communicator that sends or receives one, in ``wait``
    and ``test`` of its messages, and in ``close()``. While this rank does anything else,
    collectives too, only what fits the channel is under way: wait for a long message before a
    collective that its receiver enters after it. A collective goes on all the time, in a thread.
    """

    _done = False
    _result: Any = None
    _error: BaseException | None = None

    def __init__(self, *what: object) -> None:
        self._what = what  # words

    def wait(self, timeout_s: float | None = None) -> Any:
        """Wait until the call is done; at once if it is already.

        An interrupt, such as Ctrl-C, of the wait for a collective ends this wait and nothing else.

        Args:
            timeout_s: None takes, for a message, the communicator's own. A collective has that in
                any case, from when all that was begun before it is done.

        Returns:
            What the blocking call returns: of ``irecv`` the array, of ``isend`` None. The same
            again if called again.

        Raises:
            CommTimeout: ``timeout_s`` is over, and the call under way: it can be waited for again.
                Or a collective took longer than the communicator's own time: the group has ended.
            MismatchError: ``out`` of ``irecv`` does not fit what came, which is lost.
            Whatever else the blocking call raises after it has begun.
        """
        self._go_on(timeout_s, once=False)
        if self._error is not None:
            raise again(self._error)
        return self._result

    def test(self) -> bool:
        """Return whether the call is done, without waiting; raise as ``wait``.

        Only for a message whose other rank is gone it waits: for what may be on the way from it.
        """
        self._go_on(None, once=True)
        if self._error is not None:
            raise again(self._error)
        return self._done

    @abstractmethod
    def _go_on(self, timeout_s: float | None, *, once: bool) -> None:
        """Wait until the call is done, if it is not yet; or only look, ``once``."""

    def __repr__(self) -> str:
        what = " ".join(map(str, self._what))
        return f"<Request {what}, {'done' if self._done else 'pending'}>"


class _Beginning:
    """Stands for a communicator in the body of a blocking method: begins what that would make."""

    request: Request

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self._shortcuts: dict[Any, Any] = {}

    def _call(self, kind: str, x: Any, out: Any, _: None, *more: Any) -> None:
        self.request = self._comm._begin(kind, Arguments(x, out, *more))

    def _message(self, sending: bool, array: Any, peer: int, tag: int, _: None) -> None:
        self.request = self._comm._begin_message(sending, array, peer, tag)


def begins(blocking: Callable[P, object]) -> Callable[P, Request]:
    """Return the method that begins what another one makes, and takes the same but ``timeout_s``.

    The body of the other one calls ``_call`` or ``_message`` and nothing else.
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
