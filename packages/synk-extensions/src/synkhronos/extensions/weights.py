"""Weights of a model by name: one .npz file, without the rest of a training.

A checkpoint of the Trainer continues a training, and fits only that training. Weights are the
values of shared variables alone: for another program, another optimiser, or a part of another
model::

    from synkhronos.extensions.weights import load_weights, save_weights

    save_weights("model.npz", network)          # a Lasagne layer, or shared variables
    load_weights("model.npz", network)          # on all ranks

The file has an array for each name; ``numpy.load(path)`` reads it. There are no pickles in it.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import synkhronos as synk
from synk_core.engine import SharedVariable
from synkhronos import _default
from synkhronos.exceptions import InputTypeError, InputValueError
from synkhronos.extensions.train._checkpoint_files import FORMAT, META, ArrayFile, write_arrays
from synkhronos.extensions.train._ranks import OneProcess

__all__ = ["load_weights", "save_weights"]


def save_weights(path: str | os.PathLike[str], params: Any) -> list[str]:
    """Write the values of shared variables to a .npz file, by name.

    The values are those of this process, the master. (With a rule of ``extensions.sync``, call
    ``train.sync.settle()`` first.) A file of that name is replaced only after all of the new one
    is on the disk. No other rank takes part or blocks.

    Args:
        path: The file; its name is used as it is.
        params: A Lasagne layer or a list of layers: all parameters of these and of the layers
            below, also those that are not trained. Or a shared variable, a list of them, each
            with a name, or a dict of them by name.

            A Lasagne parameter is named ``layer.W`` if its layer has the name "layer". Of layers
            without a name, the class and a number take its place, in the order of
            ``get_all_layers()``: ``DenseLayer_0.W``.

    Returns:
        The names, in the order of the parameters.

    Raises:
        InputTypeError: ``params`` is something else, or a value is no array of numbers.
        InputValueError: A variable has no name, or two have the same.
        OSError: The file cannot be written; an old one is unchanged.
    """
    variables = _named(params, "save_weights")
    arrays = {name: np.asarray(variable.get_value()) for name, variable in variables.items()}
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise InputTypeError(
                f"save_weights(): {name!r} is {variables[name].type}; expected shared variables "
                "that hold numbers"
            )
    write_arrays(Path(path), arrays)
    return list(arrays)


def load_weights(path: str | os.PathLike[str], params: Any, strict: bool = True) -> list[str]:
    """Set shared variables to the values in a file of :func:`save_weights`, on all ranks.

    Or in one of ``numpy.savez(path, *values)``, with a value for each, in the order of ``params``.

    Everything is checked before the first value is set. Blocks until every rank has the values;
    before ``fork()``, this process gets them, and the others when they are distributed.

    Args:
        path: The file.
        params: As in :func:`save_weights`. Floats may have another precision than those in the
            file.
        strict: Whether the file has to have exactly the names of ``params``. If False, only
            variables whose name is in the file are set; their shapes have to be equal all the same.

    Returns:
        The names that were set, in the order of the parameters.

    Raises:
        As :func:`save_weights`; InputValueError: the file is not one of weights, or does not fit: a
        name is missing or unexpected, a shape differs, or numbers are of another kind. The message
        lists all differences, and nothing was changed.
    """
    variables = _named(params, "load_weights")
    arrays = _read(Path(path), variables, strict)
    targets = [variables[name] for name in arrays]
    values = [arrays[name].astype(variables[name].dtype) for name in arrays]
    if _default.is_open():
        synk.broadcast(targets, values)
    else:
        OneProcess().perform([(targets, values)])
    return list(arrays)


def _named(params: Any, function: str) -> dict[str, Any]:
    """Return shared variables by name, in their order."""
    listed = params if isinstance(params, (list, tuple)) else [params]
    lasagne = sys.modules.get("lasagne")  # nobody has a layer of it unless it is imported
    if isinstance(params, Mapping):
        pairs = list(params.items())
    elif lasagne and listed and all(isinstance(item, lasagne.layers.Layer) for item in listed):
        pairs = _of_layers(params)
    else:
        pairs = [(getattr(variable, "name", None), variable) for variable in listed]
    found: dict[str, Any] = {}
    for name, variable in pairs:
        if not isinstance(variable, SharedVariable):
            raise InputTypeError(
                f"{function}(): got {variable!r}; expected a Lasagne layer, or shared variables in "
                "a list or in a dict by name"
            )
        if not isinstance(name, str) or not name:
            raise InputValueError(
                f"{function}(): {variable!r} has the name {name!r}; expected a text: pass a dict "
                "{name: variable}"
            )
        if found.get(name, variable) is not variable:
            raise InputValueError(
                f"{function}(): two variables have the name {name!r}; expected different names: "
                "rename one, or pass a dict {name: variable}"
            )
        found[name] = variable
    return found


def _of_layers(layers: Any) -> list[tuple[Any, Any]]:
    """Return the names and parameters of Lasagne's layers, each parameter once."""
    import lasagne

    names: dict[Any, Any] = {}
    numbers: Counter[str] = Counter()
    for layer in lasagne.layers.get_all_layers(layers):
        params, prefix = layer.get_params(), ""
        if params and not layer.name:
            kind = type(layer).__name__
            prefix = f"{kind}_{numbers[kind]}."
            numbers[kind] += 1
        for param in params:
            names.setdefault(param, param.name and prefix + param.name)
    return [(name, param) for param, name in names.items()]


def _read(path: Path, variables: dict[str, Any], strict: bool) -> dict[str, Any]:
    """Return the arrays for variables; none is read before all are known to fit."""
    try:
        with ArrayFile(path) as file:
            members = {name: name for name in file.names}
            numbered = [f"arr_{i}" for i in range(len(variables))]
            if set(members) == set(numbered) and not members.keys() & variables:
                members = dict(zip(variables, numbered))  # numpy.savez(path, *values)
            common = [name for name in variables if name in members]
            wrong = list(_misfits(file, members, variables, strict or not common))
            if not wrong:
                return {name: file.array(members[name], known=True) for name in common}
            is_checkpoint = META in members and FORMAT in str(file.array(META))
    except OSError:
        raise
    except Exception as error:  # whatever a damaged or hostile file makes NumPy raise
        raise InputValueError(
            f"load_weights(): {path} cannot be read ({type(error).__name__}: {error}); expected a "
            "file that save_weights() wrote"
        ) from error
    if is_checkpoint:
        raise InputValueError(
            f"load_weights(): {path} is a checkpoint of a Trainer; expected a file that "
            "save_weights() wrote: load it by trainer.resume(path), then save_weights()"
        )
    hint = "; strict=False loads only what has the same name" if strict and common else ""
    raise InputValueError(
        f"load_weights(): {path} does not fit params: {'; '.join(wrong)}. Expected the same "
        f"names and shapes{hint}. Nothing was changed"
    )


def _misfits(
    file: ArrayFile, members: dict[str, str], variables: dict[str, Any], strict: bool
) -> Iterator[str]:
    """Yield a sentence for each difference."""
    if strict:
        yield from (f"{name}: missing in the file" for name in variables if name not in members)
        yield from (
            f"{name}: in the file, but not in params" for name in members.keys() - variables
        )
    for name in (name for name in variables if name in members):
        array, variable = file.like(members[name]), variables[name]
        here = variable.get_value(borrow=True)
        if array.shape != here.shape:
            yield f"{name}: shape {array.shape} in the file, {here.shape} here"
        elif not np.can_cast(array.dtype, variable.dtype, "same_kind"):
            yield f"{name}: {array.dtype} in the file, {variable.dtype} here"
