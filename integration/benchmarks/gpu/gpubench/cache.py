"""Theano's compiled modules, from one machine to the next: packed in pieces, unpacked."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import IO

PIECE = 15_000_000
MOST_PIECES = 4
NAME = "theano-cache.tar.xz"


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive, whole or in pieces (``NAME.00``, ``NAME.01`` ...), into a folder.

    Raises:
        FileNotFoundError: there is neither.
    """
    pieces = [archive] if archive.exists() else _pieces(archive)
    if not pieces:
        raise FileNotFoundError(f"{archive}: neither this file nor {archive.name}.00 is there")
    folder.mkdir(parents=True, exist_ok=True)
    whole = folder / NAME
    with whole.open("wb") as out:
        for piece in pieces:
            with piece.open("rb") as part:
                shutil.copyfileobj(part, out)
    try:
        with tarfile.open(whole, "r:xz") as tar:
            tar.extractall(folder)  # our own, of an earlier run
    finally:
        whole.unlink()


def pack(folder: Path, destination: Path, piece: int = PIECE) -> list[Path]:
    """Pack a folder into pieces of at most `piece` bytes; returns their paths.

    Sources stay behind: a compiled module is found by its key, and loaded without them.

    Raises:
        ValueError: it takes more than `MOST_PIECES`, which are left.
        RuntimeError: xz failed.
    """
    destination.mkdir(parents=True, exist_ok=True)
    whole = destination / NAME
    for old in _pieces(whole):
        old.unlink()
    with whole.open("wb") as out:
        xz = subprocess.Popen(["xz", "-T0", "-3", "-c"], stdin=subprocess.PIPE, stdout=out)
        assert xz.stdin is not None
        with xz.stdin, tarfile.open(fileobj=xz.stdin, mode="w|") as tar:
            tar.add(folder, arcname=".", filter=_wanted)
    if xz.wait():
        raise RuntimeError(f"xz ended with status {xz.returncode}")
    pieces: list[Path] = []
    with whole.open("rb") as source:
        while _copy(source, path := destination / f"{NAME}.{len(pieces):02d}", piece):
            pieces.append(path)
        path.unlink()
    whole.unlink()
    if len(pieces) > MOST_PIECES:
        raise ValueError(f"the cache takes {len(pieces)} pieces, expected {MOST_PIECES} at most")
    return pieces


def _pieces(archive: Path) -> list[Path]:
    return sorted(archive.parent.glob(archive.name + ".[0-9]*"))


def _copy(source: IO[bytes], path: Path, length: int) -> bool:
    data = source.read(length)
    path.write_bytes(data)
    return bool(data)


def _wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    name = Path(entry.name).name
    source = name.endswith((".cpp", ".cu", ".pyc"))
    return None if source or name in ("lock_dir", "__pycache__") else entry
