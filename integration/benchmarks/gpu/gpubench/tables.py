"""What is aimed at on GPUs, and how a result is shown."""

from __future__ import annotations

from typing import Callable

from synk_benchmarks.results import Cell, Result, Row, Spread, alone
from synk_benchmarks.tables import Page, Table
from synk_benchmarks.targets import Target, Verdict
from synk_benchmarks.text import amount

PLAIN, PLAIN_TAKE = "plain Theano, x[idx]", "plain Theano, np.take(out=)"
OURS, OURS_AHEAD, BARE = "synkhronos", "synkhronos, steps()", "bare NCCL"
COPY, OURS_SUM = "np.take(out=), one thread", "synkhronos, their sum"
FROM_MEMORY = "synkhronos, steps() on a Data"
OWN = "its own 1 GPU"
TARGETS = (
    # Efficiencies.
    *(
        Target(network, limit, OWN, ranks=gpus, at_least=True)
        for network in ("resnet", "vgg")
        for gpus, limit in ((2, 0.97), (4, 0.97), (8, 0.95))
    ),
    # Times beside the bare loop's, of the gradient of ResNet-50.
    Target("allreduce", 1.05, BARE, smallest=102_400_000, largest=102_400_000),
    Target("distribution", 2.0),
    Target("fork", 6.0),
)
FOLDED = ("resnet", "vgg")
BASES = {"allreduce": BARE, "files": COPY}
TITLES = {
    "resnet": "ResNet-50: training steps",
    "vgg": "VGG-16: training steps",
    "allreduce": "all_reduce, avg, float32",
    "distribution": "Distribution of the training functions",
    "fork": "fork() to the first result of a trivial function",
    "timeline": "Where a step's time goes",
    "files": "Rows of a memory-mapped file",
}


def contender(row: Row) -> str:
    """Return who did it: each row has one."""
    (name,) = row.cells
    return name


def cell(row: Row) -> Cell:
    """Return the only cell."""
    return row.cells[contender(row)]


def median(row: Row) -> float:
    """Return the median of the rounds."""
    return cell(row).value or 0.0


def images_per_s(row: Row) -> float:
    """Return the images of a step over the median time of a step."""
    return row.images / median(row)


def efficiency(row: Row, base: Row) -> float:
    """Return images per second and GPU, beside those of the base; 1 is linear scaling.

    Raises:
        ValueError: one of them has no images.
    """
    if not row.images or not base.images:
        raise ValueError(f"{contender(row)} and {contender(base)}: expected steps over images")
    return (images_per_s(row) / row.ranks) / (images_per_s(base) / base.ranks)


def steps_table(rows: list[Row], title: str = "") -> Table:
    """Make the table of training steps: times, images per second, and three efficiencies."""
    header = ["", "GPUs", "ms/step", "images/s", f"beside {PLAIN}", f"beside {PLAIN_TAKE}"]
    steps = [row for row in rows if row.images]
    bases: list[Callable[[Row], str]] = [lambda _row: PLAIN, lambda _row: PLAIN_TAKE, contender]
    lines = []
    for row in steps:
        line = [contender(row), str(row.ranks), f"{median(row) * 1e3:.1f}"]
        line.append(f"{images_per_s(row):.0f}")
        for base in bases:
            found = _find(steps, base(row), 1)
            line.append("" if found is None or found is row else f"{efficiency(row, found):.3f}")
        own = _find(steps, contender(row), 1)
        aimed = own is not None and contender(row) in (OURS, OURS_AHEAD)
        line.append(_target(row, efficiency(row, own), OWN) if aimed else "")
        lines.append(line)
    return Table([*header, f"beside {OWN}", "target"], lines, (0, 7), (), title)


def calls_table(rows: list[Row], base: str, title: str = "") -> Table:
    """Make the table of calls: times beside those of a base that moves as many bytes."""
    header = ["", "GPUs", "", "time", "bandwidth", f"beside {base}", "target"]
    lines = []
    for row in rows:
        bare = _find([other for other in rows if other.label == row.label], base, row.ranks)
        line = [row.label, str(row.ranks), contender(row), amount(median(row))]
        line.append(f"{row.nbytes / median(row) / 1e9:.3g} GB/s" if row.nbytes else "")
        if bare is None or row is bare:
            line += ["", ""]
        else:
            ratio = median(row) / median(bare)
            line += [f"{ratio:.2f}", _target(row, ratio, base)]
        lines.append(line)
    return Table(header, lines, (0, 2, 6), (), title)


def beyond_plain(rows: list[Row]) -> list[Row]:
    """Return what a step of ResNet-50 takes longer than plain Theano's with ``x[idx]``."""
    steps = [row for row in rows if row.group == "resnet" and row.images]
    base = _find(steps, PLAIN, 1)
    if base is None:
        return []
    what, note = "a step less plain Theano's, x[idx]", "what is to be made smaller"
    return [
        alone("timeline", what, OURS, row.ranks, (median(row) - median(base),), note)
        for row in steps
        if contender(row) == OURS
    ]


def plain_table(rows: list[Row], title: str = "") -> Table:
    """Make the table of what was measured without comparison."""
    lines = []
    for row in rows:
        samples, spread = cell(row).samples, ""
        if len(samples) > 1:
            spread = f"{amount(min(samples), row.unit)} to {amount(max(samples), row.unit)}"
        line = [row.label, contender(row), str(row.ranks), amount(median(row), row.unit), spread]
        lines.append([*line, _target(row, median(row)), cell(row).note])
    header = ["", "who", "GPUs", "median", "of all rounds", "target", "note"]
    return Table(header, lines, (0, 1, 4, 5, 6), (), title)


def page(result: Result) -> Page:
    """Show a result; PyTorch's steps are in one table with the others."""
    tables = []
    for part, title in TITLES.items():
        rows = [row for row in result.rows if row.group == part]
        if part in FOLDED:
            rest = [row for row in rows if not row.images]
            tables += [steps_table(rows, title), plain_table(rest, f"{title}, parts")]
        elif part in BASES:
            tables.append(calls_table(rows, BASES[part], title))
        else:
            more = beyond_plain(result.rows) if part == "timeline" and rows else []
            tables.append(plain_table([*rows, *more], title))
    steps = (row for row in result.rows if row.images and cell(row).note)
    remarks = [
        f"{TITLES[row.group]}, {contender(row)}, {row.ranks}: {cell(row).note}" for row in steps
    ]
    return Page("GPU benchmarks", result, [one for one in tables if one.lines], remarks=remarks)


def _find(rows: list[Row], name: str, gpus: int) -> Row | None:
    found = (row for row in rows if contender(row) == name and row.ranks == gpus)
    return next(found, None)


def _target(row: Row, value: float, to: str = "") -> str:
    """Judge a number of ours, or its comparison with another row's."""
    found = Spread(value, value, value)
    aims = (one for one in TARGETS if one.holds_for(row) and one.to == to)
    return next((Verdict(row, one.to, found, one).text for one in aims), "")
