"""What goes wrong with checkpoints."""

from __future__ import annotations

from synkhronos.exceptions import SynkError


class CheckpointError(SynkError, ValueError):
    """A checkpoint cannot be read, does not fit this training, or would mix with another's.

    Nothing has been changed by the attempt.
    """
