"""Files that show which point a program has reached."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Callable, Optional, Union


class Mark:
    """A file that shows other processes that one of them has reached a point."""

    def __init__(self, path: Union[str, "os.PathLike[str]"]) -> None:
        self.path = Path(path)

    def set(self, text: str = "") -> None:
        """Create the file; others see all of its text, or no file."""
        draft = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        draft.write_text(text)
        os.replace(draft, self.path)

    def read(self) -> Optional[str]:
        """Return the text; None if there is no file."""
        try:
            return self.path.read_text()
        except FileNotFoundError:
            return None

    def clear(self) -> None:
        """Remove the file, if it is there."""
        if self.path.exists():
            self.path.unlink()

    def wait(self, limit_s: float = 60.0, check: Callable[[], object] = lambda: None) -> str:
        """Wait until the file is there; return its text, or raise TimeoutError."""
        deadline = time.monotonic() + limit_s
        while (text := self.read()) is None:
            check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.path.name} was not reached in {limit_s} s")
            time.sleep(0.002)
        return text
