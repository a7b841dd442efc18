"""Random graphs over rows of many kinds, as lines of Python, and their computation.

A graph is a list of lines, each of which names one variable more, so that a failure is printed as
the few lines that lead to it. It is computed by the engine's own `perform`, one node after the
other, without optimization.
"""

from __future__ import annotations

import re
import warnings
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
from _check_words import WORDS, io_toposort

from synk_testing.engine import IS_THEANO, T, engine

if IS_THEANO:
    MORE_UNARY = ["T.nnet.relu", "T.nnet.hard_sigmoid", "T.nnet.ultra_fast_sigmoid"]
    MORE: List[Any] = [(1, lambda pick: "T.unbroadcast({P}, 0)")]
else:
    from _check_pytensor import MORE, MORE_UNARY
    from _check_pytensor import WORDS as OWN_WORDS

    WORDS.update(OWN_WORDS)

LARGEST = 1e12

x, y = T.dmatrix("x"), T.dmatrix("y")
v, u = T.dvector("v"), T.dvector("u")
t = T.dtensor3("t")
i8, u8, bo = (
    T.bvector("i8"),
    T.TensorType("uint8", (False, False))("u8"),
    T.TensorType("bool", (False,))("bo"),
)
lab = T.lvector("lab")
SCATTERED = [x, y, v, u, t, i8, u8, bo, lab]
q = engine.shared(np.zeros((1, 3)), name="q")
k, a, c = T.lscalar("k"), T.dscalar("a"), T.dvector("c")
BROADCAST = [k, a, c]
ks, s = engine.shared(np.int64(0), name="ks"), engine.shared(0.0, name="s")
w = engine.shared(np.zeros((3, 3)), name="w")
SHARED = [ks, s, w]
WITH_ROWS = [*SCATTERED, q]
NAMES: Dict[str, Any] = {str(variable): variable for variable in (
    *WITH_ROWS, *BROADCAST, *SHARED)}  # fmt: skip

# What a placeholder stands for: the variables of a graph that fit, by dimensions and dtype.
FITS = {
    "M": lambda z: z.ndim == 2 and z.dtype.startswith("float"),
    "V": lambda z: z.ndim == 1 and z.dtype.startswith("float"),
    "C": lambda z: z.ndim == 3 and z.dtype.startswith("float"),
    "F": lambda z: z.dtype.startswith("float"),
    "R": lambda z: z.dtype.startswith("float") and z.ndim > 0,
    "P": lambda z: z.ndim > 0,
    "A": lambda z: True,
    "I": lambda z: z.dtype.startswith(("int", "uint", "bool")),
    "B": lambda z: z.dtype == "bool",
    "L": lambda z: z.ndim == 1 and z.dtype.startswith(("int", "uint")),
    "S": lambda z: z.ndim == 0 and z.dtype.startswith("float"),
}
NUMBERS = ["k", "ks", "-k", "-ks", "0", "1", "2", "-1", "-2", "T.maximum(k, 1)", "x.shape[0]",
           "x.shape[1]", "x.shape[0] - k", "k + ks"]  # fmt: skip
STOPS = ["", "", "", *NUMBERS]
SCALARS = ["a", "s", "-s", "a * s", "0.0", "1.0", "2.0", "-1.0", "0.5", "c[0]", "c.min()",
           "T.zeros(())", "x.shape[0]", "1.0 / x.shape[0]", "3"]  # fmt: skip
UNARY = ["T.exp", "T.exp2", "T.expm1", "T.log", "T.log2", "T.log10", "T.log1p", "T.sqrt", "T.sqr",
         "inv", "T.tanh", "T.sinh", "T.cosh", "T.arcsinh", "T.arccosh", "T.arctanh", "T.arcsin",
         "T.arccos", "T.arctan", "T.sin", "T.cos", "T.tan", "sigmoid", "softplus",
         "T.erf", "T.erfc", "T.floor", "T.ceil", "T.trunc", "T.round", "T.sgn", "abs", "T.neg",
         "T.deg2rad", "T.isnan", "T.isinf", "T.zeros_like", "T.ones_like", "T.invert", "T.gammaln",
         "engine.gradient.disconnected_grad", *MORE_UNARY]  # fmt: skip
BINARY = ["{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} / {1}", "{0} // {1}", "{0} % {1}",
          "T.pow({0}, {1})", "T.maximum({0}, {1})", "T.minimum({0}, {1})", "T.gt({0}, {1})",
          "T.le({0}, {1})", "T.eq({0}, {1})", "T.neq({0}, {1})", "T.ge({0}, {1})",
          "T.lt({0}, {1})", "T.arctan2({0}, {1})", "T.second({0}, {1})"]  # fmt: skip
REDUCTIONS = ["sum", "sum", "mean", "max", "min", "prod", "var", "std", "norm"]
AXES = ["0", "0", "1", "-1", "None", "None", "(0, 1)"]
DTYPES = ["int8", "uint8", "int64", "float64", "float32", "bool", "int16"]


def _reduction(pick: Any) -> str:
    name = pick(REDUCTIONS)
    if name == "norm":
        return f"{{P}}.norm({pick(['1', '2', '0', 'np.inf', '-np.inf', '3', 'a'])})"
    keep = pick(["", "", ", keepdims=True"])
    return f"{{P}}.{name}(axis={pick(AXES)}{keep})"


def _subtensor(pick: Any) -> str:
    bounds = f"{pick(STOPS)}:{pick(STOPS)}" + pick(["", "", f":{pick(STOPS)}"])
    entry = pick([bounds, bounds, "::-1", pick(NUMBERS)])
    return pick([f"[{entry}]", f"[:, {entry}]", f"[{entry}, {pick(NUMBERS)}]", f"[{entry}]",
                 f"[{pick(NUMBERS)}, {entry}]", f"[:, {entry}, {pick(NUMBERS)}]"])  # fmt: skip


SCANS = [
    "scan(lambda e, z: z + e.sum(), sequences={C}.dimshuffle(1, 0, 2), outputs_info=[{S}])[0]",
    "scan(lambda e, z: z + e.sum(), sequences=t.dimshuffle(1, 0, 2), outputs_info=[NUM])[0][-1]",
    "scan(lambda e, z: z + e.mean(), sequences=t.dimshuffle(1, 0, 2), outputs_info=[NUM])[0][-1]",
    ("scan(lambda e, z: z * a + e.sum(0), sequences=t.dimshuffle(1, 0, 2), "
    "outputs_info=[T.zeros((3,))])[0]"),
    "scan(lambda e, z: z * e.prod(), sequences=t.dimshuffle(1, 0, 2), outputs_info=[NUM])[0]",
    ("scan(lambda e, z: T.maximum(z, e.max()), sequences=t.dimshuffle(1, 0, 2), "
    "outputs_info=[NUM])[0]"),
    ("scan(lambda e, z: z + e * a, sequences={C}.dimshuffle(1, 0, 2), "
    "outputs_info=[T.zeros_like(t[:, 0])])[0]"),
    "scan(lambda e: T.tanh(e).sum(axis=0), sequences={C}.dimshuffle(1, 0, 2))[0]",
    "scan(lambda z: z + {S}, outputs_info=[NUM], n_steps=T.maximum(k, 1))[0]",
    "scan(lambda z: z + {S}, outputs_info=[NUM], n_steps=2)[0][-1]",
    "scan(lambda e: e.sum(), sequences={M})[0]",
    "scan(lambda e, z: e + z, sequences={M}.T, outputs_info=[T.zeros_like({V})])[0][-1]",
    ("scan(lambda p, z: z + p + {S}, outputs_info=[dict(initial=T.zeros((2,)), taps=[-2, -1])], "
    "n_steps=3)[0]"),
]  # fmt: skip

TEMPLATES = [
    (14, lambda pick: f"{pick(UNARY)}({{{pick('FFFAAIS')}}})"),
    (12, lambda pick: pick(BINARY).format(*pick([("{F}", "{F}"), ("{A}", "{A}"), ("{A}", "NUM"),
                                                 ("NUM", "{A}"), ("{S}", "{S}")]))),
    (16, _reduction),
    (3, lambda pick: f"{{B}}.{pick(['any', 'all'])}(axis={pick(AXES)})"),
    (8, lambda pick: "{P}" + _subtensor(pick)),
    (4, lambda pick: f"T.{pick(['set', 'inc'])}_subtensor({{P}}{_subtensor(pick)}, "
                     f"{pick(['NUM', '{A}', '{S}'])})"),
    (2, lambda pick: f"T.{pick(['set', 'inc'])}_subtensor({pick(['{P}', 'T.zeros((3,))', 'w'])}"
                     f"[{pick(['{L}', 'lab', '[0, 2]'])}], {pick(['NUM', '{A}', '1'])})"),
    (2, lambda pick: f"{{P}}[{pick(['{L}', 'lab', ':, [2, 0]', ':, lab'])}]"),
    (1, lambda pick: "{P}[T.arange(x.shape[0])]"),
    (2, lambda pick: f"{{M}}[T.arange({pick(['', 'k, '])}x.shape[0]), lab]"),
    (1, lambda pick: f"{{P}}[{{B}}{pick(['', '.nonzero()'])}]"),
    (3, lambda pick: f"T.join({pick(['0', '1', '-1', 'k', 'ks', '-k'])}, {{P}}, {{P}})"),
    (2, lambda pick: f"T.stack([{{A}}, {{A}}], axis={pick(['0', '1', '-1'])})"),
    (2, lambda pick: f"T.concatenate([{{M}}, {{M}}], axis={pick(['0', '1', 'k'])})"),
    (2, lambda pick: "{P}.dimshuffle(" + pick(["0, 1", "1, 0", "0", "0, 'x'", "'x', 0", "1, 0, 2",
                                               "2, 1, 0"]) + ")"),
    (3, lambda pick: f"{{P}}.reshape(({pick(['-1', 'x.shape[0]', 'k', '3', 'x.shape[0] * 2'])}, "
                     f"{pick(['-1', '3', 'k', 'x.shape[0]', '1'])}))"),
    (2, lambda pick: "{P}." + pick(["flatten()", "flatten(2)", "T", "copy()"])),
    (4, lambda pick: f"T.cumsum({{P}}, axis={pick(['0', '1', 'None', '-1'])})"),
    (2, lambda pick: f"T.cumprod({{P}}, axis={pick(['0', '1', 'None', '-1'])})"),
    (3, lambda pick: f"T.{pick(['sort', 'argsort'])}({{P}}, "
                     f"axis={pick(['0', '1', '-1', 'None', 'k'])})"),
    (3, lambda pick: f"T.{pick(['argmax', 'argmin'])}({{P}}, "
                     f"axis={pick(['0', '1', '-1', 'None'])})"),
    (4, lambda pick: pick(["T.dot({M}, {M})", "T.dot({M}, w)", "T.dot({V}, {V})",
                        "T.dot({M}.T, {M})",
                           "T.dot({M}, {V})", "T.dot({V}, {M})", "T.dot({M}, c)", "T.dot(w, {M}.T)",
                           "T.tensordot({C}, w, axes=[[2], [0]])", "T.outer({V}, {V})",
                           "batched_dot({C}, {C}.dimshuffle(0, 2, 1))"])),
    (2, lambda pick: f"{pick(['softmax', 'log_softmax'])}({{M}}{pick(['', '.T'])})"),
    (4, lambda pick: pick(["T.switch({B}, {A}, {A})", "T.switch(T.gt({F}, NUM), {A}, NUM)",
                           "T.switch({B}, {S}, NUM)", "T.switch(T.gt(k, 0), {A}, {A})"])),
    (1, lambda pick: "ifelse(T.gt(k, 0), {S}, {S})"),
    (4, lambda pick: f"T.cast({{A}}, {pick(DTYPES)!r})"),
    (3, lambda pick: "T.clip({A}, NUM, NUM)"),
    (3, lambda pick: pick(["{A} & {A}", "{A} | {A}", "{A} ^ {A}", "~{I}"])),
    (2, lambda pick: pick(["T.alloc({S}, x.shape[0])", "T.alloc({A}, x.shape[0], 3)",
                           "T.zeros((x.shape[0], 3))", "T.alloc({S}, T.maximum(k, 1))",
                           "T.ones_like({A})", "T.zeros_like({A})", "T.arange(x.shape[0])",
                           "T.arange(k, x.shape[0])", "T.arange({P}.shape[0])"])),
    (2, lambda pick: pick(["{P}.shape[0]", "{P}.shape", "{P}.size", "{P}.shape.prod()",
                           "{P}.shape[k]", "T.cast({P}.shape[0], 'float64')"])),
    (2, lambda pick: pick(["T.split({P}, [1, 2], n_splits=2, axis=1)[0]",
                        "T.split({P}, [2, k], n_splits=2, axis=0)[1]",
                           "T.roll({P}, 1, axis=0)", "T.roll({P}, 1, axis=1)", "T.diag({M})",
                           "T.repeat({P}, 2, axis=0)", "T.tile({M}, (2, 1))", "T.diff({V})",
                           "T.extra_ops.to_one_hot(lab, 3)", "T.bincount(lab)", "T.tril({M})",
                           "T.squeeze({P})", "T.shape_padleft({A})",
                           "trace({M})", "T.max_and_argmax({P}, axis=0)[1]",
                           "T.ptp({V})", "T.extra_ops.compress({B}, {P}, axis=0)"])),
    (3, lambda pick: pick(["T.grad({S}, x, disconnected_inputs='ignore')",
                           "T.grad({S}, w, disconnected_inputs='ignore')",
                           "T.grad({S}, v, disconnected_inputs='ignore')",
                           "T.grad({S}, t, disconnected_inputs='ignore')"])),
    (2, lambda pick: pick(SCANS)),
    (1, lambda pick: pick(["({V} + {V}[::-1])", "{M}.sum(axis=1)[::-1][::-1]", "{V}[::-1] * {V}"])),
    *MORE,
]  # fmt: skip
WEIGHTS = np.array([weight for weight, _ in TEMPLATES], float)
WEIGHTS /= WEIGHTS.sum()


class Graph(NamedTuple):
    """Lines ``name = expression``, and the variables they make."""

    lines: List[Tuple[str, str]]
    variables: Dict[str, Any]

    def program(self, name: str) -> str:
        """The lines that a variable needs."""
        texts, needed, waiting = dict(self.lines), set(), [name]
        while waiting:
            current = waiting.pop()
            if current in texts and current not in needed:
                needed.add(current)
                waiting += re.findall(r"z\d+", texts[current])
        return "\n".join(f"{n} = {text}" for n, text in self.lines if n in needed)


def _evaluated(text: str, names: Dict[str, Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = eval(text, {**globals(), **WORDS, **names})
    if not hasattr(made, "ndim") or made.ndim > 4:
        raise TypeError(text)
    return made if made.owner is not None else made + 0


class Computer:
    """Values of variables by each node's own Python code, in the order of the graph."""

    def __init__(self) -> None:
        self._cells: Dict[Any, List[Any]] = {}
        self._computed: Dict[Any, List[bool]] = {}
        self._thunks: List[Tuple[Any, Any]] = []
        self._failed: Dict[Any, Exception] = {}

    def add(self, variable: Any) -> None:
        """Prepare what a variable needs."""
        for node in io_toposort([], [variable]):
            if node.outputs[0] in self._cells:
                continue
            for each in [*node.inputs, *node.outputs]:
                data = getattr(each, "data", None)
                self._cells.setdefault(each, [data])
                self._computed.setdefault(each, [True])
            thunk = node.op.make_thunk(node, self._cells, self._computed, [], impl="py")
            self._thunks.append((node, thunk))

    def run(self, values: Dict[Any, Any], since: int = 0) -> int:
        """Compute all, or what was added since so many nodes; how many there are now."""
        for variable, value in values.items():
            # C code inside a scan takes arrays, not scalars of NumPy.
            self._cells.setdefault(variable, [None])[0] = np.asarray(value)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for node, thunk in self._thunks[since:]:
                self._perform(node, thunk)
        return len(self._thunks)

    def _perform(self, node: Any, thunk: Any) -> None:
        failed = next((self._failed[i] for i in node.inputs if i in self._failed), None)
        try:
            if failed is None:
                for output in node.outputs:
                    self._cells[output][0] = None
                thunk()
        except Exception as error:
            failed = error
        for output in node.outputs:
            if failed is not None:
                self._failed[output] = failed
            else:
                self._failed.pop(output, None)

    def value(self, variable: Any) -> Any:
        """A variable's value now; None if it could not be computed."""
        if variable in self._failed:
            return None
        return np.array(self._cells[variable][0])


def draw_graph(rng: Any, computer: Computer, values: Dict[Any, Any]) -> Graph:
    """Two to nine lines, each of which can be computed of these values and is not too large."""

    def pick(pool: Any) -> Any:
        return pool[rng.randint(len(pool))]

    names, lines, done, size = dict(NAMES), [], 0, int(rng.randint(2, 10))
    for _ in range(6 * size):
        if len(lines) == size:
            break
        text = _filled(TEMPLATES[rng.choice(len(TEMPLATES), p=WEIGHTS)][1](pick), names, pick)
        if text is None:
            continue
        try:
            made = _evaluated(text, names)
            computer.add(made)
        except Exception:
            continue
        done = computer.run(values, done)
        value = computer.value(made)
        if value is None or value.size > 2000 or not _is_small(value):
            continue
        lines.append((f"z{len(lines)}", text))
        names[lines[-1][0]] = made
    return Graph(lines, {name: names[name] for name, _ in lines})


def _filled(template: str, names: Dict[str, Any], pick: Any) -> Optional[str]:
    """A template with variables in its places, later ones more often."""
    while "{" in template:
        found = re.search(r"{(\w)}", template)
        assert found is not None, template
        fitting = [name for name, z in names.items() if FITS[found.group(1)](z)]
        if not fitting:
            return None
        made = [name for name in fitting if name[0] == "z"]
        name = pick(made if made and pick([True, True, False]) else fitting)
        template = template.replace(found.group(0), name, 1)
    while "NUM" in template:
        template = template.replace("NUM", pick([*SCALARS, *NUMBERS]), 1)
    return template


def _is_small(value: Any) -> bool:
    finite = np.abs(value[np.isfinite(value)]).astype(float)
    return not finite.size or bool(finite.max() < LARGEST)


def draw_data(rng: Any, kind: str) -> Dict[Any, Any]:
    """Values of all variables: rows of "any" sign, "positive", "negative", or many a "zero"."""
    n = int(rng.randint(2, 9))
    low, high = {"positive": (1, 9), "negative": (-8, 0), "zero": (-1, 2)}.get(kind, (-8, 9))
    values: Dict[Any, Any] = {}
    for variable, tail in ((x, (3,)), (y, (3,)), (v, ()), (u, ()), (t, (2, 3)), (q, (3,))):
        values[variable] = rng.randint(low, high, (n, *tail)) / 4.0
    small = {"positive": (1, 128), "negative": (-128, 0), "zero": (-1, 2)}.get(kind, (-128, 128))
    values[i8] = rng.randint(*small, n).astype("int8")
    values[u8] = rng.choice([0, 1, 2, 127, 200, 255], (n, 3)).astype("uint8")
    values[bo] = rng.uniform(size=n) < rng.choice([0.1, 0.5, 0.9])
    values[lab] = rng.randint(0, 3, n)
    for variable in (k, ks):
        values[variable] = np.int64(rng.randint(-3, 5))
    for variable in (a, s):
        values[variable] = np.float64(rng.randint(-8, 9) / 4.0)
    values[c] = rng.randint(-8, 9, 3) / 4.0
    values[w] = rng.randint(-4, 5, (3, 3)) / 4.0
    return values
