"""Draw docs/speed.svg, the picture of the first page, from docs/pictures/figures.json alone.

python integration/benchmarks/speed.py [FILE]
"""

from __future__ import annotations

import json
import sys
from math import log2
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs/speed.svg"
FIGURES = json.loads((ROOT / "docs/pictures/figures.json").read_text(encoding="utf-8"))

PLAIN, TORCH, OURS = "plain Theano", "PyTorch", "Synkhronos"
COLOURS = {PLAIN: "#8b9199", TORCH: "#d97706", OURS: "#2f7ed8"}
CURVES = {
    "the sum of 1 GB": ("array's sum", "#2f7ed8"),
    "six matrix products": ("products", "#16856b"),
    "a training step of two convolutions": ("convolutions", "#a855b5"),
}
WIDTH, LEFT, IDEAL = 400, 108, 288
PLOT, ACROSS, UP = 28, 44, 30
"""Where the curves begin, and the pixels of twice the ranks and twice the speed."""
BAR, GAP, TITLE = 15, 7, 26
STYLE = """
    /* Greys that can be read on white and on black. */
    text { fill: #747a82; }
    .title { font-weight: 700; }
    .name, .value { text-anchor: end; }
    .name { font-size: 14px; }
    .value, .ideal { font-size: 13px; }
    .ideal, .tick { text-anchor: middle; }
    .tick, .curve { font-size: 12px; }
    path { stroke: #8b9199; stroke-width: 1.5; stroke-dasharray: 4 3; }
    polyline { fill: none; stroke-width: 2; }
"""


def speedups(what: str) -> dict[int, float]:
    """Return by ranks how many times as fast as one process they compute this."""
    table = FIGURES["scaling"]
    ranks = [int(title.split()[0]) for title in table["header"][1:]]
    (row,) = (row for row in table["rows"] if row[0] == what)
    return {1: 1.0, **{n: float(cell.split()[0]) for n, cell in zip(ranks, row[1:])}}


def panel(title: str, network: str, top: int) -> tuple[list[str], int]:
    """Return the elements of a network's panel, and its lower end: images per second, of each
    contender, by number of GPUs, its fastest variant. Most of our devices have the ideal."""
    figures = FIGURES["speed"][network]
    one, most = figures[OURS]["1"], max(int(gpus) for rates in figures.values() for gpus in rates)
    lines = [f'<text class="title" x="4" y="{top + 16}">{title}</text>']
    y = top + TITLE - GAP
    for contender in (PLAIN, TORCH, OURS):
        y += GAP
        lines.append(f'<text class="name" x="{LEFT - 6}" y="{y + 13}">{contender}</text>')
        for gpus, rate in figures[contender].items():
            look = f'fill="{COLOURS[contender]}" fill-opacity="{0.4 + 0.6 * int(gpus) / most:.2f}"'
            size = f'width="{(IDEAL - LEFT) * rate / (most * one):.1f}" height="{BAR - 2}"'
            text = f"{rate:.0f}, {gpus} GPU{'s' * (gpus > '1')}"
            lines.append(f'<rect x="{LEFT}" y="{y}" {size} {look}/>')
            lines.append(f'<text class="value" x="{WIDTH - 4}" y="{y + 11}">{text}</text>')
            y += BAR
    lines.append(f'<path d="M{IDEAL} {top + 20} V{y}"/>')
    lines.append(f'<text class="ideal" x="{IDEAL}" y="{top + 15}">ideal</text>')
    return lines, y + 8


def curves(title: str, top: int) -> tuple[list[str], int]:
    """Return the elements of the panel of speed-ups over ranks, and its lower end."""
    found = {what: speedups(what) for what in CURVES}
    ranks = sorted(set().union(*found.values()))
    base = top + TITLE + round(log2(ranks[-1]) * UP) + 8

    def place(rank: int, speedup: float) -> tuple[float, float]:
        return PLOT + log2(rank) * ACROSS, base - log2(speedup) * UP

    end = place(ranks[-1], ranks[-1])
    lines = [
        f'<text class="title" x="4" y="{top + 16}">{title}</text>',
        f'<path d="M{PLOT} {base} L{end[0]:.0f} {end[1]:.0f}"/>',
        f'<text class="ideal" x="{end[0] + 24:.0f}" y="{end[1] + 4:.0f}">ideal</text>',
    ]
    for rank in ranks:
        x, y = place(rank, rank)
        lines.append(f'<text class="tick" x="{x:.0f}" y="{base + 18}">{rank}</text>')
        lines.append(f'<text class="tick" x="{PLOT - 14}" y="{y + 4:.0f}">{rank}</text>')
    for what, (name, colour) in CURVES.items():
        points = [place(rank, speedup) for rank, speedup in sorted(found[what].items())]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        lines.append(f'<polyline points="{line}" stroke="{colour}"/>')
        lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        (x, y), speedup = points[-1], found[what][ranks[-1]]
        said = f"{speedup:.1f}, {name}"
        lines.append(f'<text class="curve" x="{x + 8:.0f}" y="{y + 4:.0f}">{said}</text>')
    return lines, base + 24


def drawn() -> str:
    lines: list[str] = []
    y = 0
    for title, network in (("ResNet-50, images/s", "resnet"), ("VGG-16, images/s", "vgg")):
        added, y = panel(title, network, y)
        lines += added
    added, y = curves("CPU: speed-up by number of ranks", y + 4)
    lines += added
    body = "\n".join(f"  {line}" for line in lines)
    fonts = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}"'
        f' role="img" aria-labelledby="title" font-family="{fonts}" font-size="15">\n'
        '  <title id="title">Speed on one, two and four GPUs, and on 1 to 32 CPU cores</title>\n'
        f"  <style>{STYLE}  </style>\n{body}\n</svg>\n"
    )


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    target.write_text(drawn(), encoding="utf-8")
