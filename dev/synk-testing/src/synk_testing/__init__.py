"""Start, fork, watch and kill the programs of tests, and prove that nothing is left of them."""

from .compiling import quick_flags
from .leaks import BUT_PROCESSES, Leftovers, nothing_left, shared_memory
from .limits import hard_limit
from .marks import Mark
from .mpi import job_command, mpi_job, why_no_mpi
from .namespaces import in_private
from .processes import children, descendants, descriptors, is_there, members, wait_gone
from .program import Done, Program, run
from .signals import usual_signals
from .zygote import Zygote

__all__ = [
    "BUT_PROCESSES",
    "Done",
    "Leftovers",
    "Mark",
    "Program",
    "Zygote",
    "children",
    "descendants",
    "descriptors",
    "hard_limit",
    "in_private",
    "is_there",
    "job_command",
    "members",
    "mpi_job",
    "nothing_left",
    "quick_flags",
    "run",
    "shared_memory",
    "usual_signals",
    "wait_gone",
    "why_no_mpi",
]
