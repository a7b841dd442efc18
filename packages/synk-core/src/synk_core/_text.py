"""Values and errors in messages, shortened to a readable length."""

from __future__ import annotations

import errno
import reprlib
from typing import Any

LONGEST = 300
"""Characters of a value, or of another error's text."""

_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = _SHORT.maxset = _SHORT.maxfrozenset = 8
_SHORT.maxstring = _SHORT.maxother = 100
_SHORT.maxlong = 40


def shown(value: Any) -> str:
    """Return the value's `repr`, or its beginning and end; of a value without one, its type.

    Never raises: a message about a wrong value has to come out, however wrong it is.
    """
    try:
        return clipped(_SHORT.repr(value))
    except (Exception, SystemExit):  # noqa: BLE001 - a user's class may do anything
        return f"<{type(value).__name__}>"


def text_of(error: BaseException) -> str:
    """Return an exception's text. Never raises, whatever its class does."""
    try:
        return str(error)
    except (Exception, SystemExit):  # noqa: BLE001 - a user's class may do anything
        return "(its text cannot be made)"


_CURES = {
    errno.EMFILE: "raise this process's limit of open files: ulimit -n 4096",
    errno.EAGAIN: "end some, or raise this user's limit: ulimit -u (docker run --pids-limit=)",
    errno.ENOMEM: "free memory, or raise its limit: ulimit -v (docker run --memory=)",
}


def with_cure(error: BaseException) -> str:
    """Return the text of a system's error, and the cure if it reports a limit."""
    number = errno.EAGAIN if "start new thread" in text_of(error) else getattr(error, "errno", 0)
    return "; ".join(filter(None, (text_of(error), _CURES.get(number))))


def clipped(text: object) -> str:
    """Return the text on one line; of a long one the beginning and the end."""
    line = " ".join(str(text).split())
    if len(line) <= LONGEST:
        return line
    return f"{line[: LONGEST // 2]} ... {line[-LONGEST // 3 :]}"
