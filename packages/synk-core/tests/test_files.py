"""What is written to a path: whole or not at all, through no stranger's link, its user's alone."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys

import pytest

from synk_core.files import make_folder, stream_of, whole_file

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for devices and other users")
NOBODY = 65534


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def write(path, content=b"new", **how):
    with whole_file(path, **how) as file:
        file.write(content)


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


def make_device(path):
    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))


def bind_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize(
    "make, refusal",
    [
        (os.mkdir, "is a folder"),
        (bind_socket, "is no file, but a socket or device"),
        (os.mkfifo, "nobody reads the FIFO; start its reader first"),
        pytest.param(make_device, None, marks=AS_ROOT),
    ],
)
def test_folders_sockets_and_devices_are_never_replaced(tmp_path, monkeypatch, make, refusal):
    monkeypatch.chdir(tmp_path)  # names of sockets are limited
    path, link = tmp_path / "there", tmp_path / "link"
    make("there")
    link.symlink_to("there")
    kind = path.stat().st_mode
    for named in (path, link):
        if refusal is None:
            write(named)
        else:
            with pytest.raises(OSError, match=refusal):
                write(named)
    with pytest.raises(OSError, match=r"is a folder|is no file"):
        write(path, follow=False)
    assert path.stat().st_mode == kind
    assert sorted(os.listdir(tmp_path)) == ["link", "there"]


def test_a_fifo_and_descriptors_get_the_content(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write(path)
    assert os.read(reader, 9) == b"new"
    with stream_of(path) as stream:
        assert os.get_blocking(stream.fileno())  # or a slow reader would be an error
    os.close(reader)
    program = (
        "from synk_core.files import whole_file\nprint('before', flush=True)\n"
        "with whole_file('/dev/stdout') as file: file.write(b'new\\n')\n"
        "print('after')"
    )
    for as_pipe in (True, False):
        with (tmp_path / "output").open("w+b") as output:
            target = subprocess.PIPE if as_pipe else output
            done = subprocess.run(
                [sys.executable, "-c", program], stdout=target, check=True, timeout=120
            )
            output.seek(0)
            assert (done.stdout if as_pipe else output.read()) == b"before\nnew\nafter\n"


@pytest.mark.parametrize("old", [None, b"old"])
def test_a_link_of_ones_own_leads_to_the_file_that_is_written(tmp_path, old, open_umask):
    (tmp_path / "far").mkdir()
    file = tmp_path / "far" / "file"
    if old:
        file.write_bytes(old)
        file.chmod(0o640)
    (tmp_path / "link").symlink_to("second")
    (tmp_path / "second").symlink_to("far/file")
    write(tmp_path / "link")
    assert (file.read_bytes(), mode(file)) == (b"new", 0o640 if old else 0o600)
    assert (tmp_path / "link").is_symlink()
    assert os.listdir(tmp_path / "far") == ["file"]
    # Under a name that the user has not chosen, nothing is written through it.
    write(tmp_path / "link", b"other", follow=False)
    assert not (tmp_path / "link").is_symlink()
    assert file.read_bytes() == b"new"
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        write(tmp_path / "loop")


@AS_ROOT
def test_a_link_of_another_user_is_not_followed(tmp_path):
    (tmp_path / "file").write_bytes(b"precious")
    os.mkfifo(tmp_path / "fifo")
    for target in ("file", "fifo", "dangling"):
        link = tmp_path / f"to-{target}"
        link.symlink_to(target)
        os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
        with pytest.raises(PermissionError, match="link of another user"):
            write(link)
    assert (tmp_path / "file").read_bytes() == b"precious"
    assert len(os.listdir(tmp_path)) == 5


def test_drafts_have_names_that_nobody_can_guess_and_are_the_users_alone(tmp_path, open_umask):
    make_folder(tmp_path / "a" / "b")
    assert [mode(tmp_path / "a"), mode(tmp_path / "a" / "b")] == [0o700, 0o700]
    names = set()
    for _ in range(3):
        with whole_file(tmp_path / "a" / "b" / "file") as file:
            (draft,) = {path for path in (tmp_path / "a" / "b").iterdir() if path.name != "file"}
            assert mode(draft) == 0o600
            assert stat.S_ISREG(draft.lstat().st_mode)
            names.add(draft.name)
            file.write(b"old")
    assert len(names) == 3
    with pytest.raises(KeyboardInterrupt), whole_file(tmp_path / "a" / "b" / "file") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    (path,) = (tmp_path / "a" / "b").iterdir()
    assert (path.read_bytes(), mode(path)) == (b"old", 0o600)


@AS_ROOT
def test_a_file_that_is_replaced_keeps_its_owner(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o4664)
    os.chown(path, NOBODY, NOBODY)
    write(path)
    assert (path.stat().st_uid, path.stat().st_gid, mode(path)) == (NOBODY, NOBODY, 0o664)


def test_a_whole_path_needs_no_current_folder(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "getcwd")
    with whole_file(tmp_path / "new") as file:
        file.write(b"all of it")
    assert (tmp_path / "new").read_bytes() == b"all of it"
