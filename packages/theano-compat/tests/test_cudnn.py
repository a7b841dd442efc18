"""cuDNN found and named to Theano, and what Theano then says; on libraries made for the purpose."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from synk_theano_compat._cuda import cudnn
from synk_theano_compat._cuda.find import SearchFolder, scan


@pytest.mark.parametrize("name", ["cudnn.h", "cudnn_version.h"])
def test_version_of_a_header(tmp_path: Path, name):
    (tmp_path / "cudnn.h").write_text("/* nothing */\n")
    eight = "#define CUDNN_MAJOR 8\n#define CUDNN_MINOR 9\n#define CUDNN_PATCHLEVEL 7\n"
    nine = "#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 14\n"
    for text, version in ((eight, (8, 9, 7)), (nine, (9, 14, 0)), ("#include_next <c.h>\n", None)):
        (tmp_path / name).write_text(text)
        assert cudnn.header_version(str(tmp_path / "cudnn.h")) == version
    assert cudnn.header_version(str(cudnn.INCLUDE / "cudnn.h")) is None, "our own is none"


def test_versions_as_cudnn_counts_them():  # 8 by thousands, 9 by ten thousands
    for version, number in (((7, 6, 5), 7605), ((8, 9, 7), 8907), ((9, 14, 0), 91400)):
        assert cudnn.as_number(version) == number


@pytest.fixture
def install(build):
    """Make folders as NVIDIA's wheels do, with a cuDNN that knows its version and no more."""

    def installed(root: Path, version: tuple[int, int, int], *, library: int = 0) -> Path:
        for name in ("cudnn/lib", "cudnn/include", "cuda_runtime/include", "cuda_nvcc/include/crt"):
            (root / name).mkdir(parents=True, exist_ok=True)
        include, runtime = root / "cudnn/include", root / "cuda_runtime/include"
        names = zip(("MAJOR", "MINOR", "PATCHLEVEL"), version)
        lines = [f"#define CUDNN_{name} {number}\n" for name, number in names]
        (include / "cudnn_version.h").write_text("".join(lines))
        (include / "cudnn.h").write_text(
            f'#include <cuda_runtime.h>\n#include "{Path(__file__).with_name("fake_cudnn.h")}"\n'
            'extern "C" size_t cudnnGetVersion(void);\n'
        )
        (include / "other.h").write_text("#error nobody asked for this\n")
        (runtime / "cuda_runtime.h").write_text('#include "crt/host_config.h"\n')
        (runtime / "cuda.h").write_text("")
        (root / "cuda_nvcc/include/crt/host_config.h").write_text("#define HAS_CRT 1\n")
        number = library or cudnn.as_number(version)
        source = f'extern "C" unsigned long cudnnGetVersion() {{ return {number}; }}'
        build(root / f"cudnn/lib/libcudnn.so.{version[0]}", source)
        return root

    return installed


def find(*roots: Path) -> int:
    found = cudnn.find(scan([SearchFolder(str(root), "test", 3) for root in roots]))
    return 0 if found is None else found.version


def test_library_and_header_are_of_one_version(install, tmp_path: Path):
    mixed = install(tmp_path / "mixed", (9, 1, 0), library=90200)
    right = install(tmp_path / "right", (9, 3, 0))
    assert find(mixed) == 0
    assert find(mixed, right) == 90300
    assert find(right, install(tmp_path / "old", (8, 9, 7))) == 90300
    (right / "cudnn/include/cudnn.h").unlink()
    assert find(right) == 0


# As in a process with pygpu, up to the module that asks for cuDNN.
LEAD = """
import os, sys, types
os.environ["XDG_CACHE_HOME"], os.environ["SYNKHRONOS_CUDA_PATH"] = {cache!r}, {path!r}
import theano
from theano import config
sys.modules["pygpu"] = types.ModuleType("pygpu")
from synk_theano_compat._patches import flags as added
from synk_theano_compat._patches.gpu import cudnn as patches
print(patches.set_paths())
"""
COMPILE = """
from theano.gof.cmodule import GCC_compiler
flags = ["-I" + config.dnn.include_path, "-I" + config.cuda.include_path]
flags += ["-L" + config.dnn.library_path, "-Wl,-rpath," + config.dnn.bin_path, "-l", "cudnn"]
text = '''
#include <cudnn.h>
#ifndef HAS_CRT
#error no crt
#endif
int preference = CUDNN_CONVOLUTION_FWD_SPECIFY_WORKSPACE_LIMIT;
'''
body = "return cudnnGetVersion() == {version} && cudnnSetRNNDescriptor() == 6 ? 0 : 1;"
body = body if {version} < 9000 else "return cudnnGetVersion() == {version} ? 0 : 1;"
built, ran, *said = GCC_compiler.try_flags(flags, text, body, try_run=True, output=True)
assert built and ran, said
assert added.chosen["dnn.bin_path"] == config.dnn.bin_path
assert not os.path.exists(os.path.join(config.cuda.include_path, "other.h"))
"""


@pytest.mark.parametrize("version", [(8, 9, 7), (9, 14, 0)])
def test_theano_compiles_with_the_found_library(run, install, tmp_path: Path, version):
    root = install(tmp_path / "nvidia", version)
    number = cudnn.as_number(version)
    lead = LEAD.format(cache=str(tmp_path / "cache"), path=str(root))
    for _ in range(2):  # the second time out of the cache
        done = run(lead + COMPILE.format(version=number))
        assert done.stdout == f"cuDNN {number}: {root}/cudnn/lib/libcudnn.so.{version[0]}\n"
    kinds = [path.name.split("-")[0] for path in (tmp_path / "cache/synk-theano").iterdir()]
    assert sorted(kinds) == ["blas", "cudnn", "headers"]


def test_the_users_own_paths_come_first(run, install, tmp_path: Path):
    found = install(tmp_path / "found", (9, 14, 0))
    mine = install(tmp_path / "mine", (8, 9, 7))
    lead = LEAD.format(cache=str(tmp_path / "cache"), path=str(found))
    flags = f"dnn.include_path={mine}/cudnn/include,dnn.library_path={mine}/cudnn/lib"
    assert run(lead + COMPILE.format(version=8907), flags=flags).stdout.startswith("cuDNN 8907: ")
    (tmp_path / "cudnn.h").write_text("#include_next <cudnn.h>\n")
    code = f"assert config.dnn.include_path == {str(tmp_path)!r} and config.dnn.bin_path\n"
    run(lead + code, flags=f"dnn.include_path={tmp_path}")


PATCHED = """
import theano.gpuarray
from theano.gpuarray import dnn
from synk_theano_compat._patches import apply
done = {name: result for name, _, result in apply.applied}
"""


def test_patches_are_applied_where_there_is_no_gpu(run):
    done = run(
        PATCHED + "print(*sorted((n for n in done if n[0] == 'G'), key=lambda n: int(n[1:])))"
    )
    wanted = " ".join(f"G{number}" for number in range(2, 16))
    assert done.stdout in (f"{wanted}\n", f"G1 {wanted}\n")
    assert done.stderr == ""


def test_compute_capability(forked):
    usable = {b"compute_90": True, "compute_120": True, b"compute_100": True, b"compute_20": False}
    code = (
        "dnn.dnn_present, dnn.version = lambda: True, lambda raises=True: 91400\n"
        "class Context: kind = b'cuda'\n"
        "dnn.get_context = lambda name: Context\n"
        f"for Context.bin_id in {list(usable)}:\n"
        "    print(dnn.dnn_available(None))\n"
    )
    assert forked(PATCHED + code).stdout.split() == [str(answer) for answer in usable.values()]


def test_recurrent_networks_are_refused_with_a_cure(forked):
    forked(
        PATCHED + "dnn.version = lambda raises=True: 91400\n"
        "calls = [lambda: dnn.RNNBlock('float32', 5, 1, 'lstm'),\n"
        "         lambda: dnn.GpuDnnRNNOp('lstm', 'unidirectional'),\n"
        "         lambda: dnn._RNNDescriptor(None)]\n"
        "for call in calls:\n"
        "    try: call()\n"
        "    except RuntimeError as error: text = str(error)\n"
        "    else: raise AssertionError\n"
        "    assert 'got cuDNN 91400, expected 5 to 8' in text and 'theano.scan' in text\n"
        "dnn.version = lambda raises=True: 8907\n"
        "assert dnn.GpuDnnRNNOp('lstm', 'unidirectional').num_dirs == 1\n"
    )


def test_algorithms_that_the_user_has_set_stay(run):
    code = (
        "import json, theano\nfrom synk_theano_compat._patches import flags\n"
        "print(json.dumps(flags.in_force()))\n"
    )
    found = json.loads(run(code, flags="dnn.conv.algo_fwd=small").stdout)
    for name, value, by in (
        ("dnn.conv.algo_fwd", "small", "THEANO_FLAGS"),
        ("dnn.conv.algo_bwd_filter", "time_on_shape_change", "synk_theano_compat"),
        ("gpuarray.preallocate", "0.0", "Theano"),
    ):
        assert found[name] == {"value": value, "set_by": by}


def test_c_code_that_is_not_theanos_is_not_changed():
    from synk_theano_compat._patches.rewrite import in_c_code

    class GpuOp:
        code_sections, func_codes = {"support_code": "int a;"}, ["int a;"]

    with pytest.raises(LookupError, match=r"C code of GpuOp: .* not Theano 1\.0\.5"):
        in_c_code(GpuOp(), "support_code", "int b;", "")
    in_c_code(GpuOp, "support_code", "int a;", "int c;")
    assert (GpuOp.code_sections, GpuOp.func_codes) == ({"support_code": "int c;"}, ["int c;"])
