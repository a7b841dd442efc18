"""The public surface, and the one default runtime behind it."""

from __future__ import annotations

import importlib
import inspect
import os
from pathlib import Path

import numpy as np
import pytest
from _programs import zygote

import synkhronos as synk
from synk_core import Runtime
from synk_core._master.store import DataStore
from synk_shm.testing import no_segments_left
from synk_testing import BUT_PROCESSES, nothing_left
from synk_testing.engine import T, engine
from synkhronos import exceptions

# As documented for 1.0; later parameters may follow, none may go or move.
SIGNATURES = {
    "fork": "n_parallel use_gpu master_rank profile_workers max_n_var max_dim",
    "close": "",
    "function": "inputs outputs bcast_inputs updates givens sliceable_shareds",
    "distribute": "",
    "data": "value var dtype ndim shape minibatch force_cast oversize name",
    "broadcast": "shared_vars values nccl",
    "scatter": "shared_vars values batch",
    "gather": "shared_vars nd_up nccl",
    "all_gather": "shared_vars nccl",
    "reduce": "shared_vars op in_place nccl",
    "all_reduce": "shared_vars op nccl",
    "set_value": "rank shared_vars values batch",
    "get_value": "rank shared_vars",
    "get_lengths": "shared_vars",
    "get_shapes": "shared_vars",
}


@pytest.fixture
def two():
    synk.fork(2, verbose=False)
    yield
    synk.close()


def test_documented_functions_keep_their_parameters():
    assert set(SIGNATURES) <= set(synk.__all__)
    for name, documented in SIGNATURES.items():
        parameters = list(inspect.signature(getattr(synk, name)).parameters)
        assert parameters[: len(documented.split())] == documented.split()
        assert getattr(synk, name).__doc__


def test_a_wrong_keyword_is_answered_with_the_right_one():
    with pytest.raises(TypeError, match="'n_processes'; did you mean n_parallel="):
        synk.fork(n_processes=2)
    with pytest.raises(TypeError, match=r"'xyz', expected one of \['n_parallel', "):
        synk.fork(xyz=2)
    with pytest.raises(TypeError, match="'output'; did you mean outputs="):
        synk.function([], output=[])


def test_function_takes_all_that_the_engines_takes(two):
    """Spelled out, so that editors complete them, and type checkers find typos."""
    engines, ours = (inspect.signature(f).parameters for f in (engine.function, synk.function))
    assert set(engines) <= set(ours)
    assert not any(one.kind is one.VAR_KEYWORD for one in ours.values())
    x, s = T.matrix("x"), engine.shared(1.0, name="s")
    s.default_update = s + 1
    options = {"name": "named", "mode": "FAST_COMPILE", "allow_input_downcast": True}
    f = synk.function([x], x.mean() + s, **options)
    assert "named" in repr(f)
    assert f(np.ones((4, 2), "int8")) == 2.0
    assert s.get_value() == 2.0
    f = synk.function([x], x.mean() + s, no_default_updates=True)
    f(np.ones((4, 2), engine.config.floatX))
    assert s.get_value() == 2.0


def test_completion_shows_public_names():
    assert {*dir(synk)} == {*synk.__all__, "exceptions", "extensions", "in_graph"}


def test_a_forked_child_gets_the_cure_for_ranks_of_its_own(two):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            synk.close()
            synk.fork(2, verbose=False)
        except exceptions.AlreadyForked as error:
            status = 0 if "fresh process, as multiprocessing's 'spawn' gives" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    x = T.vector("x")
    assert float(synk.function([x], x.mean())(np.arange(4.0))) == 1.5


def test_documented_objects_have_their_attributes():
    call = list(inspect.signature(synk.Function.__call__).parameters)
    assert {"output_subset", "batch", "batch_s", "num_slices"} <= set(call)
    for kind in (synk.Function, synk.Data):
        assert all(getattr(kind, name).__doc__ for name in dir(kind) if not name.startswith("_"))
    modules = [importlib.import_module(f"synkhronos.{m}_module") for m in ("data", "function")]
    assert (modules[0].Data, modules[1].Function) == (synk.Data, synk.Function)
    assert (Path(synk.__file__).parent / "py.typed").is_file(), "editors find the types"


def test_nothing_works_before_fork():
    code = f"""
import inspect
import synkhronos as synk
for name in {sorted({*SIGNATURES, "row_share", "seed"} - {"fork", "close"})}:
    act = getattr(synk, name)
    parameters = inspect.signature(act).parameters.values()
    try:
        act(*(0 for one in parameters if one.default is one.empty))
    except RuntimeError as error:
        assert "call synkhronos.fork() first" in str(error), (name, error)
    else:
        raise SystemExit(name)
synk.close()
"""
    assert zygote().run(code) == (0, "", "")


def test_fork_after_close_works_again_with_another_number():
    x = T.vector("x")
    with nothing_left(without=BUT_PROCESSES), no_segments_left():
        for size in (1, 2):
            assert synk.fork(size, verbose=False) == size
            f = synk.function([x], (x, "gather"))
            np.testing.assert_array_equal(f(np.arange(5.0)), np.arange(5.0))
            synk.close()
            synk.close()
            with pytest.raises(exceptions.Closed, match=r"call fork\(\)"):
                f(np.arange(5.0))


def test_fork_twice_is_refused_and_every_function_reaches_the_first(two):
    with pytest.raises(exceptions.AlreadyForked, match=r"call close\(\) first"):
        synk.fork(2)
    s = engine.shared(np.zeros(2), name="s")
    synk.scatter(s, np.arange(8.0), batch=slice(0, 6))
    assert synk.get_lengths(s) == (3, 3)
    assert synk.get_shapes(s) == ((3,), (3,))
    assert synk.gather(s, nd_up=1, nccl=True).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert synk.reduce(s, op="sum", in_place=False, nccl=False).tolist() == [3, 5, 7]
    synk.set_value(1, s, np.full(3, 9.0))
    assert synk.get_value(1, s).tolist() == [9, 9, 9]
    synk.all_reduce(s, op="max")
    assert s.get_value().tolist() == [9, 9, 9]
    synk.broadcast([s], [np.ones(1)])
    synk.all_gather(s)
    assert synk.get_value(1, [s])[0].tolist() == [1, 1]
    x = T.vector("x")
    share = synk.function([x], (synk.row_share() * x.mean(), "sum"))
    np.testing.assert_allclose(share(synk.data(np.arange(5.0))), 2.0)


def test_the_default_number_of_processes_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("SYNKHRONOS_N_PARALLEL", "3")
    assert synk.fork(verbose=False) == 3
    synk.close()
    monkeypatch.setenv("SYNKHRONOS_N_PARALLEL", "many")
    with pytest.raises(ValueError, match="SYNKHRONOS_N_PARALLEL: got 'many'"):
        synk.fork()


def test_progress_is_printed_unless_it_is_not_wanted(capsys):
    for verbose in (True, False):
        synk.fork(2, verbose=verbose)
        synk.distribute()
        synk.close()
        printed = capsys.readouterr().out
        assert ("...distribution complete" in printed) is bool(printed) is verbose


def test_errors_are_of_one_family_and_of_the_usual_kinds():
    kinds = {
        RuntimeError: "AlreadyForked Closed NotForked StartError WorkerDied WorkerFailed",
        TypeError: "InputTypeError NotSharedVariable SpecError",
        ValueError: "InputValueError OpError",
        IndexError: "BatchError",
        MemoryError: "SharedMemoryFull",
    }
    for kind, names in kinds.items():
        for name in names.split():
            assert issubclass(getattr(exceptions, name), exceptions.SynkError)
            assert issubclass(getattr(exceptions, name), kind)


OWN_FRAMES = """
import traceback
import numpy as np
from synk_testing.engine import T, engine
import synkhronos as synk
from synk_testing.engine import as_op

@as_op([T.dvector], [T.dvector])
def act(values):
    if values.max() > 0:
        raise ValueError("cannot stand it")
    return values

synk.fork(2, use_gpu=False, verbose=False)
x = T.dvector("x")
f = synk.function([x], (act(x), "gather"), name="touchy", mode="FAST_COMPILE")
calls = [lambda: f([1.0, 0.0]), lambda: f([0.0, 1.0]), lambda: f(), lambda: synk.function([x], 3)]
calls += [lambda: synk.all_reduce(x), lambda: synk.data(force_cast=True)]
for call in calls:
    try:
        call()
    except Exception as error:
        print(traceback.format_exc().count("synk_core/"), end=" ")
"""


def test_tracebacks_show_users_their_own_lines():
    done = zygote().run(OWN_FRAMES, environment={"PYTHONWARNINGS": "ignore"}, limit_s=60)
    assert done.out.split() == ["1"] * 6, "one where the user has called, and nothing else"


def test_fork_and_data_have_the_defaults_of_the_runtime():
    """Their signatures are written twice: for users, and where the work is done."""
    for ours, theirs in [(synk.fork, Runtime.__init__), (synk.data, DataStore.make)]:
        mine, other = (inspect.signature(each).parameters for each in (ours, theirs))
        shared = set(mine) & set(other)
        assert len(shared) >= 9
        differing = {n for n in shared if mine[n].default != other[n].default}
        assert differing <= {"proof"}
