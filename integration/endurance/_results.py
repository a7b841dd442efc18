"""What the programs here share: their options, and the JSON file that each of them writes."""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
from pathlib import Path
from typing import Any

from synk_testing import usual_signals


def begin(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Read the command line, print the seed; from here on SIGTERM raises."""
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--json", type=Path, default=None, help="write the results there")
    options = parser.parse_args()
    usual_signals()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(2**31)
    print(f"seed {options.seed}", flush=True)
    return options


def write(path: Path | None, content: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
