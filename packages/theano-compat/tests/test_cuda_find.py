"""Finding CUDA's libraries: from a list of folders, on folders made for the purpose."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from synk_theano_compat._cuda.find import (
    PATH_VARIABLE,
    FoundFile,
    SearchFolder,
    choose,
    folders_of_cache,
    scan,
    search_path,
)


def make(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def found(folder: Path, **options) -> dict[str, list[str]]:
    files = scan([SearchFolder(str(folder), "test", **options)])
    return {name: [one.path for one in all_] for name, all_ in files.libraries.items() if all_}


def test_versions_are_read_from_the_file_that_links_lead_to(tmp_path: Path):
    make(tmp_path / "libcublas.so.12.4.5.8")
    (tmp_path / "libcublas.so.12").symlink_to("libcublas.so.12.4.5.8")
    (tmp_path / "libcublas.so").symlink_to("libcublas.so.12")
    (one,) = scan([SearchFolder(str(tmp_path), "test")]).libraries["cublas"]
    assert one.version == (12, 4, 5, 8)
    assert one.origin == "test"


def test_the_newest_of_a_folder_is_taken(tmp_path: Path):
    make(*(tmp_path / f"libcudnn.so.{version}" for version in (8, 9, 10)))
    assert found(tmp_path) == {"cudnn": [str(tmp_path / "libcudnn.so.10")]}


def test_other_libraries_and_broken_links_are_not_taken(tmp_path: Path):
    make(tmp_path / "libcublasLt.so.12", tmp_path / "libcudnn_ops.so.9", tmp_path / "libcuda.a")
    (tmp_path / "libnccl.so.2").symlink_to("nowhere")
    (tmp_path / "libnvrtc.so").mkdir()
    assert found(tmp_path) == {}


@pytest.mark.parametrize("folder", ["stubs", "compat"])
def test_stand_ins_for_the_driver_are_not_taken(tmp_path: Path, folder: str):
    make(tmp_path / folder / "libcuda.so")
    assert found(tmp_path, depth=3) == found(tmp_path / folder) == {}


def test_depth(tmp_path: Path):
    make(tmp_path / "nvidia/cu13/lib/libnvrtc.so.13", tmp_path / ".hidden/libnccl.so.2")
    assert found(tmp_path, depth=2) == {}
    assert found(tmp_path, depth=3) == {"nvrtc": [str(tmp_path / "nvidia/cu13/lib/libnvrtc.so.13")]}


def test_a_folder_that_links_to_itself_ends(tmp_path: Path):
    (tmp_path / "again").symlink_to(tmp_path)
    make(tmp_path / "libnccl.so.2")
    assert found(tmp_path, depth=6)["nccl"][0] == str(tmp_path / "libnccl.so.2")


def test_folders_that_are_not_there_have_nothing(tmp_path: Path):
    assert found(tmp_path / "nowhere", depth=2) == {}


def test_headers(tmp_path: Path):
    make(tmp_path / "include/cudnn.h", tmp_path / "include/crt/host_config.h")
    files = scan([SearchFolder(str(tmp_path), "test", 2)])
    names = {name for name, all_ in files.headers.items() if all_}
    assert names == {"cudnn.h", "crt/host_config.h"}


def test_headers_beside_a_library(tmp_path: Path):
    make(tmp_path / "cudnn/lib/libcudnn.so.9", tmp_path / "cudnn/include/cudnn.h")
    (tmp_path / "links").mkdir()
    (tmp_path / "links/libcudnn.so").symlink_to(tmp_path / "cudnn/lib/libcudnn.so.9")
    for folder in ("cudnn/lib", "links"):
        files = scan([SearchFolder(str(tmp_path / folder), "test")])
        assert [one.path for one in files.headers["cudnn.h"]] == [
            str(tmp_path / "cudnn/include/cudnn.h")
        ]


def test_order_of_places(tmp_path: Path):
    wheel = tmp_path / "site" / "nvidia" / "cu13" / "lib"
    wheel.mkdir(parents=True)
    environ = {
        "LD_LIBRARY_PATH": "/ld:relative:",
        "CUDA_HOME": "/home",
        "CUDA_PATH": "/path",
        PATH_VARIABLE: f"/mine{os.pathsep}/mine2",
    }
    listed = search_path(environ, ["/nothing", str(tmp_path / "site")], ["/cache"])
    folders = [place.folder for place in listed]
    order = ["/mine", "/mine2", "/home/lib64", "/path/lib64", "/ld", str(wheel)]
    order += ["/usr/local/cuda/lib64", "/cache", "/usr/local/nvidia/lib64", "/usr/include"]
    assert [folder for folder in folders if folder in order] == order
    assert "relative" not in folders
    assert [place.depth > 0 for place in listed[:3]] == [True, True, False]


def test_lines_of_the_linkers_cache():
    text = (
        "2 libs found in cache `/etc/ld.so.cache'\n"
        "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1\n"
        "\tlibcudnn_ops.so.9 (libc6,x86-64) => /opt/other/libcudnn_ops.so.9\n"
        "\tlibnccl.so.2 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnccl.so.2\n"
    )
    assert folders_of_cache(text) == ["/usr/lib/x86_64-linux-gnu"]


def test_nothing_newer_than_the_driver_is_chosen():
    new, old, unknown = (
        FoundFile("new", (13, 2), ""),
        FoundFile("old", (12, 9), ""),
        FoundFile("?", (), ""),
    )
    assert choose([new, old]) == new
    assert choose([new, old], (13,)) == choose([new, old], (13, 2)) == new
    assert choose([new, old], (13, 0)) == choose([new, old], (12,)) == old
    assert choose([new], (12,)) is None
    assert choose([unknown, new], (12,)) == unknown
    assert choose([]) is None


def test_version_of_a_wheels_nvrtc(tmp_path: Path):
    make(tmp_path / "libnvrtc.so.13", tmp_path / "libnvrtc-builtins.so.13.5")
    (nvrtc,) = scan([SearchFolder(str(tmp_path), "test")]).libraries["nvrtc"]
    assert nvrtc.version == (13, 5)
    make(tmp_path / "libnvrtc.so.13.0.88")
    (nvrtc,) = scan([SearchFolder(str(tmp_path), "test")]).libraries["nvrtc"]
    assert nvrtc.version == (13, 0, 88)
