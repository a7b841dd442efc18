"""Points that a program says it has reached."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Callable, Optional, Union


class Mark:
    """A file by which one process tells others that it is at a certain point.

    Args:
        path: of the file.
    """

    def __init__(self, path: Union[str, "os.PathLike[str]"]) -> None:
        self.path = Path(path)

    def set(self, text: str = "") -> None:
        """Say so, with a text, which others see whole or not at all."""
        draft = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        draft.write_text(text)
        os.replace(draft, self.path)

    def read(self) -> Optional[str]:
        """Return the text; None if it was not said."""
        try:
            return self.path.read_text()
        except FileNotFoundError:
            return None

    def clear(self) -> None:
        """Take it back."""
        if self.path.exists():
            self.path.unlink()

    def wait(self, limit_s: float = 60.0, check: Callable[[], object] = lambda: None) -> str:
        """Wait until it is said; return the text.

        Args:
            check: is called now and then, and may raise.

        Raises:
            TimeoutError: it was not said in time.
        """
        deadline = time.monotonic() + limit_s
        while (text := self.read()) is None:
            check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.path.name} was not reached in {limit_s} s")
            time.sleep(0.002)
        return text
