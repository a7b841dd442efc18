"""Results as tables: ratios, targets, plain text for the terminal, a page of Markdown."""

from __future__ import annotations

from typing import Callable

from .results import Result, Row

PLAIN, PLAIN_TAKE = "plain Theano, x[idx]", "plain Theano, np.take(out=)"
OURS, BARE = "synkhronos", "bare NCCL"
EFFICIENCY = {"resnet": {2: 0.97, 4: 0.95}}
"""At least this, beside plain Theano with ``x[idx]``, by part and number of GPUs."""
RATIO = {102_400_000: 1.05}
"""At most this beside the bare loop, by bytes."""
DISTRIBUTION_S = 5.0
FOLDED = ("resnet", "vgg")
TITLES = {
    "resnet": "ResNet-50: training steps",
    "vgg": "VGG-16: training steps",
    "allreduce": "all_reduce, avg, float32",
    "distribution": "Distribution of the training functions",
    "fork": "fork() to the first result of a trivial function",
    "timeline": "Where a step's time goes",
}

Table = tuple[list[str], list[list[str]]]


def efficiency(row: Row, base: Row) -> float:
    """Images per second and GPU, beside those of the base; 1 is linear scaling.

    Raises:
        ValueError: one of them has no images.
    """
    if not row.images or not base.images:
        raise ValueError(f"{row.contender} and {base.contender}: expected steps over images")
    return (row.images_per_s / row.gpus) / (base.images_per_s / base.gpus)


def amount(value: float, unit: str = "s") -> str:
    """A number in the unit that suits it: 131 ms, 102 MB, 2581."""
    if unit == "1":
        return f"{value:g}"
    if unit == "B":
        steps = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
        for factor, name in steps:
            if abs(value) >= factor:
                return f"{value / factor:.3g} {name}"
        return f"{value:.0f} B"
    for factor, name in ((1e6, "us"), (1e3, "ms")):
        if abs(value) * factor < 999.5:
            return f"{value * factor:.3g} {name}"
    return f"{value:.2f} s"


def steps_table(rows: list[Row], part: str) -> Table:
    """Milliseconds per step, images per second, and three efficiencies."""
    header = ["", "GPUs", "ms/step", "images/s", f"beside {PLAIN}", f"beside {PLAIN_TAKE}"]
    header += ["beside its own 1 GPU", "target"]
    steps = [row for row in rows if row.images]
    bases: list[Callable[[Row], str]] = [lambda _row: PLAIN, lambda _row: PLAIN_TAKE]
    bases.append(lambda row: row.contender)
    lines = []
    for row in steps:
        line = [row.contender, str(row.gpus), f"{row.median * 1e3:.1f}", f"{row.images_per_s:.0f}"]
        for base in bases:
            found = _find(steps, base(row), 1)
            line.append("" if found is None or found is row else f"{efficiency(row, found):.3f}")
        plain = _find(steps, PLAIN, 1)
        limit = EFFICIENCY.get(part, {}).get(row.gpus) if row.contender == OURS else None
        line.append("" if limit is None or plain is None else _at_least(row, plain, limit))
        lines.append(line)
    return header, lines


def calls_table(rows: list[Row]) -> Table:
    """Times of calls beside the bare loop of the same size."""
    header = ["", "GPUs", "", "time", "bandwidth", "ours / bare", "target"]
    lines = []
    for row in rows:
        bare = _find([other for other in rows if other.what == row.what], BARE, row.gpus)
        line = [row.what, str(row.gpus), row.contender, amount(row.median)]
        line.append(f"{row.nbytes / row.median / 1e9:.3g} GB/s" if row.nbytes else "")
        if bare is None or row is bare:
            line += ["", ""]
        else:
            ratio, limit = row.median / bare.median, RATIO.get(row.nbytes)
            line.append(f"{ratio:.2f}")
            said = "" if limit is None else f"<= {limit:g} {'yes' if ratio <= limit else 'NO'}"
            line.append(said)
        lines.append(line)
    return header, lines


def beyond_plain(rows: list[Row]) -> list[Row]:
    """What a step of ResNet-50 takes longer than plain Theano's with ``x[idx]``, by medians."""
    steps = [row for row in rows if row.part == "resnet" and row.images]
    base = _find(steps, PLAIN, 1)
    if base is None:
        return []
    what, note = "a step less plain Theano's, x[idx]", "what is to be made smaller"
    return [
        Row("timeline", what, OURS, row.gpus, (row.median - base.median,), note=note)
        for row in steps
        if row.contender == OURS
    ]


def plain_table(rows: list[Row], limits: dict[str, float] | None = None) -> Table:
    """What was measured, and no comparison; limits by contender."""
    lines = []
    for row in rows:
        limit = (limits or {}).get(row.what)
        said = ""
        if limit is not None:
            said = f"<= {amount(limit, row.unit)} {'yes' if row.median <= limit else 'NO'}"
        spread = ""
        if len(row.rounds) > 1:
            spread = f"{amount(min(row.rounds), row.unit)} to {amount(max(row.rounds), row.unit)}"
        line = [row.what, row.contender, str(row.gpus), amount(row.median, row.unit), spread]
        lines.append([*line, said, row.note])
    return ["", "who", "GPUs", "median", "of all rounds", "target", "note"], lines


def tables(result: Result) -> dict[str, Table]:
    """All tables of a result by title; those of PyTorch's steps are beside the others."""
    found: dict[str, Table] = {}
    for part, title in TITLES.items():
        rows = [row for row in result.rows if row.part == part]
        if not rows:
            continue
        if part in FOLDED:
            found[title] = steps_table(rows, part)
            rest = [row for row in rows if not row.images]
            if rest:
                found[f"{title}, parts"] = plain_table(rest)
        elif part == "allreduce":
            found[title] = calls_table(rows)
        elif part == "timeline":
            found[title] = plain_table([*rows, *beyond_plain(result.rows)])
        else:
            limits = {"distribute(), resnet": DISTRIBUTION_S} if part == "distribution" else None
            found[title] = plain_table(rows, limits)
    return found


def plain(result: Result) -> str:
    """Everything for a terminal."""
    out = []
    for title, (header, lines) in tables(result).items():
        widths = [max(map(len, column)) for column in zip(header, *lines)]
        out += [title, _aligned(header, widths)]
        out += [_aligned(line, widths) for line in lines]
        out.append("")
    return "\n".join([*out, *_remarks(result)]) + "\n"


def markdown(result: Result) -> str:
    """A page that stands for itself."""
    page = ["# GPU benchmarks", "", "## Where and how", "", "| | |", "|---|---|"]
    facts = {**result.machine, **result.settings, **result.about}
    page += [f"| {name} | {_escaped(value)} |" for name, value in facts.items()]
    page.append("")
    for title, (header, lines) in tables(result).items():
        page += [f"## {title}", "", f"| {' | '.join(map(_escaped, header))} |"]
        page.append("|" + "---|" * len(header))
        page += [f"| {' | '.join(_escaped(cell) for cell in line)} |" for line in lines]
        page.append("")
    remarks = _remarks(result)
    if remarks:
        page += ["## Remarks", "", *(f"- {_escaped(text)}" for text in remarks)]
    return "\n".join(page).rstrip() + "\n"


def _find(rows: list[Row], contender: str, gpus: int) -> Row | None:
    found = (row for row in rows if row.contender == contender and row.gpus == gpus)
    return next(found, None)


def _at_least(row: Row, base: Row, limit: float) -> str:
    return f">= {limit:g} {'yes' if efficiency(row, base) >= limit else 'NO'}"


def _remarks(result: Result) -> list[str]:
    steps = (row for row in result.rows if row.part in FOLDED and row.images and row.note)
    notes = [f"{TITLES[row.part]}, {row.contender}, {row.gpus}: {row.note}" for row in steps]
    return [*notes, *(f"left out: {name}: {why}" for name, why in result.left_out.items())]


def _aligned(line: list[str], widths: list[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip()


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("\n", " ")
