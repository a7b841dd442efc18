"""Who takes part: one class for each way to do what is measured.

This file imports next to nothing, since it is loaded by processes that time imports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

FAILED = "failed: "
"""Beginning of the note on what raised."""


class NotOfferedError(Exception):
    """This contender has no way to do that; the text says so in a few words, without a colon.

    With a colon it is worth a remark below the table: "not there: no scatter()".
    """


class Contender:
    """One way to do what is measured.

    Attributes:
        name: of its column; ``--only`` takes it.
        by_default: whether it takes part without being named.
    """

    name = ""
    by_default = True

    @classmethod
    def missing(cls) -> str:
        """Return why it cannot take part here, and what would help; empty if it can."""
        return ""

    def close(self) -> None:
        """Free what it took. Called in any case, also after an error."""


def failure(error: BaseException) -> str:
    """Return the note on what raised this."""
    return f"{FAILED}{type(error).__name__}: {error}"[:300]


def choose(
    contenders: Mapping[str, type[Contender]], only: Sequence[str], ours: str
) -> tuple[list[str], dict[str, str]]:
    """Return who takes part, and why others who were wanted cannot; ours always does.

    Raises:
        ValueError: ours cannot.
    """
    named = [name for name in only if name in contenders]
    wanted = [
        name
        for name, contender in contenders.items()
        if (name in named or name == ours if named else contender.by_default)
    ]
    reasons = {name: contenders[name].missing() for name in wanted}
    if reasons[ours]:
        raise ValueError(f"{ours} cannot be imported: {reasons[ours]}")
    return (
        [name for name in wanted if not reasons[name]],
        {name: reason for name, reason in reasons.items() if reason},
    )
