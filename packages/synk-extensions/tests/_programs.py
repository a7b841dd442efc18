"""Running the example programs as a user does, on two CPU processes or SYNK_TEST_DEVICES."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
from pathlib import Path

import synk_testing

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
DEVICES = [name for name in os.environ.get("SYNK_TEST_DEVICES", "").split(",") if name]
CPU_PROCESSES = 2
WITHOUT_CONVOLUTIONS = any(name.startswith("opencl") for name in DEVICES)
LIMIT_S = 300
# Theano's own implementations of convolutions are slow, and some are in C only.
IN_C = {"THEANO_FLAGS": os.environ.get("THEANO_FLAGS", "") + ",linker=cvm"}


def number_of_ranks():
    return len(DEVICES) or CPU_PROCESSES


def on_devices(only_first=False):
    if DEVICES:
        return ("--devices", ",".join(DEVICES[:1] if only_first else DEVICES))
    return ("--devices", "cpu", "--processes", "1" if only_first else str(CPU_PROCESSES))


def on_one_device():
    return ("--devices", DEVICES[0] if DEVICES else "cpu")


@functools.cache
def zygote():
    """A process that has imported what the programs import: programs fork from it in no time."""
    known = "import synkhronos.extensions.train, synk_testing.engine"
    if importlib.util.find_spec("lasagne") is not None:
        known += ", lasagne"
    made = synk_testing.Zygote(known)
    atexit.register(made.close)
    return made


def start(program, *arguments, folder=EXAMPLES, **environment):
    """Run Python in a folder; return (exit status, standard output, error output)."""
    how = {"folder": folder, "environment": environment, "limit_s": LIMIT_S}
    if program == "-c" or DEVICES:
        return synk_testing.run([str(program), *map(str, arguments)], **how)
    return zygote().run(Path(folder, program), *arguments, **how)


def run(*command, folder=EXAMPLES, **environment):
    """Run Python in a folder, return what it prints; it has to succeed."""
    status, out, err = start(*command, folder=folder, **environment)
    assert status == 0, f"{command}:\n{out}\n{err}"
    return out
