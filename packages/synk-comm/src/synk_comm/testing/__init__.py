"""Tools for tests: ranks in fresh processes, and ranks in threads of this one."""

from __future__ import annotations

from ._ranks import Outcome, in_threads, run_ranks, thread_group

__all__ = ["Outcome", "in_threads", "run_ranks", "thread_group"]
