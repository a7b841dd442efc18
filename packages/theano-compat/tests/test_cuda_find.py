"""Finding CUDA's libraries: from a list of folders, on folders made for the purpose."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from synk_theano_compat._cuda import find
from synk_theano_compat._cuda.find import FoundFile, SearchFolder, choose, scan


def make(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def found(folder: Path, **options) -> dict[str, list[str]]:
    files = scan([SearchFolder(str(folder), "test", **options)])
    return {name: [one.path for one in all_] for name, all_ in files.libraries.items() if all_}


OTHERS = ["libcublasLt.so.12", "libcudnn_ops.so.9", "libcuda.a", "libnvrtc.so/file"]


def test_versions_are_read_from_the_file_that_links_lead_to(tmp_path: Path):
    make(tmp_path / "libcublas.so.12.4.5.8")
    (tmp_path / "libcublas.so.12").symlink_to("libcublas.so.12.4.5.8")
    (tmp_path / "libcublas.so").symlink_to("libcublas.so.12")
    (one,) = scan([SearchFolder(str(tmp_path), "test")]).libraries["cublas"]
    assert (one.version, one.origin) == ((12, 4, 5, 8), "test")


@pytest.mark.parametrize(
    ("files", "links", "depth", "expected"),
    [
        (["libcudnn.so.8", "libcudnn.so.9", "libcudnn.so.10"], {}, 0, {"cudnn": "libcudnn.so.10"}),
        (OTHERS, {"libnccl.so.2": "nowhere"}, 0, {}),
        # What stands in for the driver.
        (["stubs/libcuda.so", "compat/libcuda.so"], {}, 3, {}),
        (["a/b/lib/libnvrtc.so.13", ".hidden/libnccl.so.2"], {}, 2, {}),
        (["a/b/lib/libnvrtc.so.13"], {}, 3, {"nvrtc": "a/b/lib/libnvrtc.so.13"}),
        (["libnccl.so.2"], {"again": "."}, 6, {"nccl": "libnccl.so.2"}),
        ([], {}, 2, {}),
    ],
)
def test_libraries_of_a_folder(tmp_path: Path, files, links, depth, expected):
    make(*(tmp_path / name for name in files))
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    got = {name: paths[0] for name, paths in found(tmp_path, depth=depth).items()}
    assert got == {name: str(tmp_path / path) for name, path in expected.items()}
    assert found(tmp_path / "nowhere", depth=depth) == found(tmp_path / "stubs") == {}


def test_headers_below_a_folder_and_beside_a_library(tmp_path: Path):
    make(tmp_path / "cudnn/lib/libcudnn.so.9", tmp_path / "cudnn/include/cudnn.h")
    make(tmp_path / "cudnn/include/crt/host_config.h")
    files = scan([SearchFolder(str(tmp_path), "test", 2)])
    assert {n for n, all_ in files.headers.items() if all_} == {"cudnn.h", "crt/host_config.h"}
    (tmp_path / "links").mkdir()
    (tmp_path / "links/libcudnn.so").symlink_to(tmp_path / "cudnn/lib/libcudnn.so.9")
    for folder in ("cudnn/lib", "links"):
        files = scan([SearchFolder(str(tmp_path / folder), "test")])
        (header,) = files.headers["cudnn.h"]
        assert header.path == str(tmp_path / "cudnn/include/cudnn.h")


def test_order_of_places(tmp_path: Path):
    wheel = tmp_path / "site" / "nvidia" / "cu13" / "lib"
    wheel.mkdir(parents=True)
    environ = {
        "LD_LIBRARY_PATH": "/ld:relative:",
        "CUDA_HOME": "/home",
        "CUDA_PATH": "/path",
        find.PATH_VARIABLE: f"/mine{os.pathsep}/mine2",
    }
    listed = find.search_path(environ, ["/nothing", str(tmp_path / "site")], ["/cache"])
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
    assert find.folders_of_cache(text) == ["/usr/lib/x86_64-linux-gnu"]


def test_nothing_newer_than_the_driver_is_chosen():
    new, old, unknown = (FoundFile("", version, "") for version in ((13, 2), (12, 9), ()))
    assert choose([new, old]) == new
    assert choose([new, old], (13,)) == choose([new, old], (13, 2)) == new
    assert choose([new, old], (13, 0)) == choose([new, old], (12,)) == old
    assert choose([new], (12,)) is None
    assert choose([unknown, new], (12,)) == unknown
    assert choose([]) is None


def test_version_of_a_wheels_nvrtc(tmp_path: Path):
    make(tmp_path / "libnvrtc.so.13")
    for name, version in (("-builtins.so.13.5", (13, 5)), (".so.13.0.88", (13, 0, 88))):
        make(tmp_path / f"libnvrtc{name}")
        (nvrtc,) = scan([SearchFolder(str(tmp_path), "test")]).libraries["nvrtc"]
        assert nvrtc.version == version
