"""Draw docs/speed.svg, the picture of the first page, from recorded results alone.

python integration/benchmarks/speed.py [FILE]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
GPUS = ROOT / "integration/benchmarks/gpu/results/2026-11-25-two-h100.json"
CORES = ROOT / "packages/synk-theano/benchmarks/results/2026-11-23-two-core-epyc.json"
PICTURE = ROOT / "docs/speed.svg"

PLAIN, TORCH, OURS = "plain Theano", "PyTorch DDP", "synkhronos"
NAMES = {PLAIN: PLAIN, TORCH: "PyTorch", OURS: "Synkhronos"}
COLOURS = {PLAIN: "#8b9199", TORCH: "#d97706", OURS: "#2f7ed8"}
WIDTH, LEFT, IDEAL = 400, 108, 288
BAR, GAP, TITLE = 15, 7, 26
STYLE = """
    /* Greys that can be read on white and on black. */
    text { fill: #747a82; }
    .title { font-weight: 700; }
    .name, .value { text-anchor: end; }
    .name { font-size: 14px; }
    .value, .ideal { font-size: 13px; }
    .ideal { text-anchor: middle; }
    path { stroke: #8b9199; stroke-width: 1.5; stroke-dasharray: 4 3; }
"""


class Bar(NamedTuple):
    """One contender on one or two devices; the rate is per second, more is better."""

    contender: str
    devices: int
    text: str
    rate: float


def rows_of(path: Path, group: str, label: str) -> list[dict]:
    """Return the recorded rows of this group and label."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return [row for row in rows if (row["group"], row["label"]) == (group, label)]


def training(group: str) -> list[Bar]:
    """Return images per second: of each contender, on one and two GPUs, its fastest variant."""
    fastest: dict[tuple[str, int], float] = {}
    for row in rows_of(GPUS, group, "step"):
        for variant, cell in row["cells"].items():
            (contender,) = (name for name in NAMES if variant.startswith(name))
            key = contender, row["ranks"]
            fastest[key] = max(fastest.get(key, 0.0), row["images"] / cell["median"])
    return [
        Bar(contender, gpus, f"{rate:.0f}, {gpus} GPU{'s' * (gpus > 1)}", rate)
        for contender in NAMES
        for (name, gpus), rate in sorted(fastest.items())
        if name == contender
    ]


def computing(label: str) -> list[Bar]:
    """Return calls per second: plain Theano with one and two BLAS threads, ours with two ranks."""
    times = {}
    for row in rows_of(CORES, "scaling", label):
        times.update({name: cell["median"] for name, cell in row["cells"].items()})
    kinds = (
        (PLAIN, 1, "1 thread", "one process"),
        (PLAIN, 2, "2 threads", "one process, BLAS with a thread for each rank"),
        (OURS, 2, "2 ranks", "ours"),
    )
    return [
        Bar(who, n, f"{1 / times[name]:.1f}, {said}", 1 / times[name])
        for who, n, said, name in kinds
    ]


def panel(title: str, bars: list[Bar], base: str, top: int) -> tuple[list[str], int]:
    """Return the elements of one panel, and its lower end; `base` has the ideal of two devices."""
    (one,) = (bar.rate for bar in bars if (bar.contender, bar.devices) == (base, 1))
    lines = [f'<text class="title" x="4" y="{top + 16}">{title}</text>']
    y = top + TITLE
    for place, bar in enumerate(bars):
        if not place or bars[place - 1].contender != bar.contender:
            y += GAP * (place > 0)
            lines.append(
                f'<text class="name" x="{LEFT - 6}" y="{y + 13}">{NAMES[bar.contender]}</text>'
            )
        length = (IDEAL - LEFT) * bar.rate / (2 * one)
        look = f'fill="{COLOURS[bar.contender]}" fill-opacity="{1 if bar.devices > 1 else 0.55}"'
        size = f'width="{length:.1f}" height="{BAR - 2}"'
        lines.append(f'<rect x="{LEFT}" y="{y}" {size} {look}/>')
        lines.append(f'<text class="value" x="{WIDTH - 4}" y="{y + 11}">{bar.text}</text>')
        y += BAR
    lines.append(f'<path d="M{IDEAL} {top + 20} V{y}"/>')
    lines.append(f'<text class="ideal" x="{IDEAL}" y="{top + 15}">ideal</text>')
    return lines, y + 8


def drawn() -> str:
    """Return the picture."""
    lines: list[str] = []
    y = 0
    for title, bars, base in (
        ("ResNet-50, images/s", training("resnet"), OURS),
        ("VGG-16, images/s", training("vgg"), OURS),
        ("Convolutions, CPU, calls/s", computing("a step of two convolutions"), PLAIN),
        ("Matrix products, CPU, calls/s", computing("six matrix products"), PLAIN),
    ):
        added, y = panel(title, bars, base, y)
        lines += added
    body = "\n".join(f"  {line}" for line in lines)
    fonts = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}"'
        f' role="img" aria-labelledby="title" font-family="{fonts}" font-size="15">\n'
        '  <title id="title">Speed on one and two devices</title>\n'
        f"  <style>{STYLE}  </style>\n{body}\n</svg>\n"
    )


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    target.write_text(drawn(), encoding="utf-8")
