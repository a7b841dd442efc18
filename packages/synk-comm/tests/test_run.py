"""``python -m synk_comm.run``: output, exit codes, signals, and nobody left."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from _helpers import environment, pids_in

from synk_comm.run import main
from synk_testing import is_there, wait_gone

LIMIT_S = 60.0

PRELUDE = """
import os, signal, sys, time
import synk_comm
comm = synk_comm.connect()
rank = comm.rank
"""


def command(*args):
    return [sys.executable, "-m", "synk_comm.run", *map(str, args)]


@pytest.fixture
def script(tmp_path):
    def write(text, name="script.py", prelude=PRELUDE):
        path = tmp_path / name
        path.write_text(prelude + textwrap.dedent(text))
        return path

    return write


def run(*args, stdin=b"", **options):
    return subprocess.run(
        command(*args),
        env=environment(),
        input=stdin,
        capture_output=True,
        timeout=LIMIT_S,
        **options,
    )


def start(*args, **options):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command(*args), env=environment(), **pipes, **options)


@pytest.mark.parametrize("backend", [pytest.param("zmq", marks=pytest.mark.nightly), "auto"])
def test_ranks_meet(script, backend):
    path = script("""
        import numpy as np
        print(comm.all_reduce(np.ones(1)), os.environ["SYNK_COMM_RANK"] == str(rank))
    """)
    done = run("-n", 3, "--backend", backend, path)
    assert done.stderr == b""
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [b"[%d] [3.] True" % rank for rank in range(3)]


def test_lines_stay_whole_and_bytes_stay_what_they_are(script):
    path = script("""
        import random
        random.seed(rank)
        out = sys.stdout.buffer
        for number in range(1000):
            line = bytes(random.choice(b"abc\\0\\xff\\r") for _ in range(random.randrange(60)))
            out.write(line + b"|%d" % number)
            if number % 7 == 0:
                out.flush()  # in the middle of a line
            out.write(b"\\n")
        out.write(b"the end")
        out.flush()
    """)
    done = run("-n", 3, path)
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.split(b"\n")
    assert lines.pop() == b""
    for rank in range(3):
        mine = [line[4:] for line in lines if line.startswith(b"[%d] " % rank)]
        assert mine.pop() == b"the end"
        assert [int(line.rpartition(b"|")[2]) for line in mine] == list(range(1000))
    assert len(lines) == 3 * 1001


def test_tags_can_be_had_or_not(script):
    path = script("print('x', end=''); print('y', file=sys.stderr)")
    done = run("-n", 1, path)
    assert (done.stdout, done.stderr) == (b"x", b"y\n")
    done = run("-n", 1, "--tag-output", path)
    assert (done.stdout, done.stderr) == (b"[0] x\n", b"[0] y\n")
    done = run("-n", 2, "--no-tag-output", path)
    assert (done.stdout, sorted(done.stderr)) == (b"xx", sorted(b"y\ny\n"))


def test_input_goes_to_rank_0(script):
    path = script("print(sys.stdin.read().upper())")
    done = run("-n", 2, path, stdin=b"hello")
    assert sorted(done.stdout.splitlines()) == [b"[0] HELLO", b"[1] "]


@pytest.mark.nightly
def test_much_output_to_a_slow_reader(script):
    path = script("""
        for _ in range(200):
            sys.stdout.write(("x" * 1023 + "\\n") * 50)
        comm.barrier()
    """)
    process = start("-n", 3, path)
    total = 0
    with process.stdout as stdout:
        while piece := stdout.read(1 << 18):
            total += len(piece)
            time.sleep(0.002)
    assert process.wait(LIMIT_S) == 0
    assert total == 3 * 200 * 50 * (1024 + len("[0] "))
    with process.stderr as stderr:
        assert stderr.read() == b""


def test_a_reader_that_leaves_ends_all(script, tmp_path):
    pids = tmp_path / "pids"
    pids.mkdir()
    path = script(f"""
        open({str(pids)!r} + f"/{{os.getpid()}}", "w").close()
        while True:
            print("x" * 1000)
    """)
    process = start("-n", 2, path)
    family = pids_in(pids, 2)
    process.stdout.read(100)
    process.stdout.close()
    assert process.wait(LIMIT_S) == 128 + signal.SIGPIPE
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()
    wait_gone(family)


def test_script_sees_what_python_would_show_it(script, tmp_path):
    script("FOUND = True", "neighbour.py", prelude="")
    path = script("""
        import neighbour, multiprocessing
        assert __name__ == "__main__" and sys.modules["__main__"].__dict__ is globals()
        print(os.path.basename(sys.argv[0]), sys.argv[1:], sys.path[0] == os.path.dirname(__file__))
    """)
    done = run("-n", 1, path, "-n", "5", "--help", cwd="/")
    assert done.stdout.decode() == "script.py ['-n', '5', '--help'] True\n", done.stderr


def test_module_mode(script, tmp_path):
    (tmp_path / "package").mkdir()
    script("", "package/__init__.py", prelude="")
    script("print(__name__, __package__, sys.argv[1:])", "package/part.py")
    done = run("-n", 2, "-m", "package.part", "-n", "7", cwd=tmp_path)
    assert done.stderr == b""
    text = b"__main__ package ['-n', '7']"
    assert sorted(done.stdout.splitlines()) == [b"[0] " + text, b"[1] " + text]
    done = run("-n", 2, "-m", "package.nothing", cwd=tmp_path)
    assert done.returncode == 1
    assert b"No module named package.nothing" in done.stderr


def test_wrong_command_lines(capsys):
    for args, said in [
        (["-n", "2", "nowhere.py"], "there is no file 'nowhere.py'"),
        (["-n", "2"], "expected a script, or -m and a module"),
        (["-n", "2", "-m"], "-m needs the name of a module"),
        (["-n", "0", "x.py"], "must be more than 0"),
        (["-n", "two", "x.py"], "invalid int value: 'two'"),
        (["x.py"], "required: -n"),
        (["-n", "2", "--backend", "pigeon", __file__], "pigeon"),
    ]:
        with pytest.raises(SystemExit) as caught:
            main(args)
        assert caught.value.code == 2
        assert said in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "python -m synk_comm.run -n 4 train.py" in capsys.readouterr().out


def test_a_failure_is_one_where_ended_children_are_ignored(script):
    """As by whoever started this: then the kernel keeps no exit code, and subprocess says 0."""
    path = script("os.kill(os.getpid(), 9)", prelude="import os\n")
    ignore = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    again = [sys.executable, "-c", ignore + "os.execv(sys.argv[1], sys.argv[1:])"]
    done = subprocess.run([*again, *command("-n", 2, path)], env=environment(), timeout=LIMIT_S)
    assert done.returncode == 137


@pytest.mark.parametrize(
    "how, code, said",
    [
        ("raise KeyError('gone')", 1, "KeyError: 'gone'"),
        pytest.param("sys.exit(7)", 7, "ended with exit code 7", marks=pytest.mark.nightly),
        pytest.param("sys.exit('sorry')", 1, "ended with exit code 1", marks=pytest.mark.nightly),
        pytest.param("os._exit(9)", 9, "ended with exit code 9", marks=pytest.mark.nightly),
        ("os.kill(os.getpid(), 9)", 137, "was killed by SIGKILL"),
        pytest.param("raise KeyboardInterrupt", 130, "Keyboard", marks=pytest.mark.nightly),
    ],
)
def test_exit_code_is_that_of_the_first_cause(script, how, code, said):
    path = script(f"""
        comm.barrier()
        if rank == 1:
            {how}
        if rank == 2:
            time.sleep(100)
        comm.barrier()
    """)
    done = run("-n", 3, path)
    error = done.stderr.decode()
    assert done.returncode == code, error
    assert f"synk_comm.run: rank 1 of 3 failed first: {said}" in error
    assert "\n  rank 0: PeerLost: rank 1" in error
    assert "\n  rank 2: was ended while it was still running" in error
    assert "runpy" not in error


def test_innocent_ranks_say_one_line_each(script):
    path = script("""
        with comm:
            if rank == 1:
                {}["weights"]
            comm.barrier()
    """)
    done = run("-n", 3, path)
    error = done.stderr.decode()
    assert error.count("Traceback") == 1
    assert "[1] KeyError: 'weights'\n" in error
    cause = "AbortedError: the group was aborted by rank 1: KeyError: 'weights'"
    for rank in (0, 2):
        lines = [line for line in error.splitlines() if line.startswith(f"[{rank}] ")]
        assert lines == [f"[{rank}] synk_comm: rank {rank} ended at {path}, line 10: {cause}"]


def test_what_all_ranks_raise_shows_lines_of_the_script_only(script):
    path = script("""
        import types
        mark = lambda text: os.write(2, b"{%b}" % text.encode())
        sys.stderr = types.SimpleNamespace(write=mark, flush=int)
        def add():
            return comm.all_reduce([0.0] * (1 + rank))
        add()
    """)
    error = run("-n", 2, "--no-tag-output", path).stderr.decode()
    assert error.count("MismatchError: the ranks brought different shapes") == 4
    assert len(re.findall("{Traceback[^{}]*MismatchError[^{}]*}", error)) == 2
    assert error.count("return comm.all_reduce([0.0] * (1 + rank))") == 2
    assert "_collectives/communicator.py" not in error


def test_late_ranks_are_ended(script):
    path = script("""
        def i_am_late():
            time.sleep(100)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        i_am_late()
    """)
    done = run("-n", 2, "--timeout", "2.5", path)
    assert done.returncode == 124
    assert b"ranks 0, 1 of 2 still ran after 2.5 s" in done.stderr
    assert b"[0] " in done.stderr
    assert b"in i_am_late" in done.stderr


WAITING = """
        open(sys.argv[1] + f"/{os.getpid()}", "w").close()
        try:
            if sys.argv[2] == "stubborn":
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            open(sys.argv[1] + f"/{os.getpid()}", "w").close()
            comm.barrier()
            if rank == 0:
                print("ready")
            while True:  # a signal just before a long wait would not end it
                time.sleep(0.01)
        except KeyboardInterrupt:
            print("interrupted")
            if sys.argv[2] != "polite":
                raise
"""


@pytest.fixture
def waiting(script, tmp_path):
    """Start two ranks that wait for a signal, and make sure of their end."""
    folder = tmp_path / "pids"
    folder.mkdir()
    path = script(WAITING)
    processes = []

    def begin(how, *, wrap=(), **options):
        process = subprocess.Popen(
            [*wrap, *command("-n", 2, path, folder, how)],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )
        processes.append(process)
        assert process.stdout.readline() == b"[0] ready\n"
        return process, pids_in(folder, 2)

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def test_ranks_may_end_well_after_an_interrupt(waiting):
    process, family = waiting("polite")
    process.send_signal(signal.SIGINT)
    output, error = process.communicate(timeout=LIMIT_S)
    assert sorted(output.splitlines()) == [b"[0] interrupted", b"[1] interrupted"]
    assert (process.returncode, b"stopped by SIGINT" in error) == (0, False)
    wait_gone(family)


def test_the_second_interrupt_kills(waiting):
    process, family = waiting("stubborn")
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    assert all(map(is_there, family))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)  # less than the grace
    assert process.returncode == 130
    wait_gone(family)


def test_ctrl_c_in_a_terminal(waiting):
    ours, theirs = pty.openpty()
    # A process that leads a session, takes the terminal, and becomes the program.
    code = (
        "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    try:
        process, family = waiting(
            "plain", wrap=[sys.executable, "-c", code], stdin=theirs, start_new_session=True
        )
        os.write(ours, b"\x03")
        output, error = process.communicate(timeout=LIMIT_S)
    finally:
        os.close(ours)
        os.close(theirs)
    assert sorted(output.splitlines()) == [b"[0] interrupted", b"[1] interrupted"]
    assert (process.returncode, b"stopped by SIGINT" in error) == (130, True)
    wait_gone(family)
