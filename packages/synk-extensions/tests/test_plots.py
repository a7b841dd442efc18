"""Plots, by what is in the figures: positions, colours and texts, compared with what was put in."""

from __future__ import annotations

import itertools
import json
import math
import sys
import xml.etree.ElementTree as ET
from collections import Counter

import numpy as np
import pytest
from _programs import zygote
from _traces import process_name, span, trace

from synkhronos.exceptions import InputTypeError, InputValueError, SynkError
from synkhronos.extensions.plots import plot_scaling, plot_timeline, plot_training

pytest.importorskip("matplotlib", reason="matplotlib is an extra")
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text

from synkhronos.extensions.plots._timeline_figure import COLOURS, duration

STRONG = [{"n": n, "seconds": s, "rows": 1200} for n, s in ((1, 0.6), (2, 0.4), (4, 0.25))]


@pytest.fixture
def written(tmp_path):
    """A function that writes a file with this content."""

    def write(content, name="file"):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def drawn(axes, label):
    """The points of the line with this label."""
    (line,) = [line for line in axes.get_lines() if line.get_label() == label]
    return [list(values) for values in line.get_data()]


def boxes(figure, category):
    """Left, right, top and bottom of each box of a category, and their colours."""
    (group,) = [c for c in figure.axes[0].collections if c.get_label() == category]
    corners = [path.vertices for path in group.get_paths()]
    return [(v[:, 0].min(), v[:, 0].max(), v[:, 1].min(), v[:, 1].max()) for v in corners]


def legend(figure):
    return [text.get_text() for text in (figure.legends or figure.axes[0].legend_)[0].get_texts()]


def heading(figure):
    return figure.texts[0].get_text()


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


# Scaling.


def test_scaling_is_measured_rates_beside_linear_ones():
    figure = plot_scaling(STRONG[::-1], title="a call of 1200 rows")
    rates, efficiency = figure.axes
    assert drawn(rates, "measured") == [[1, 2, 4], [2000, 3000, 4800]]
    assert drawn(rates, "linear") == [[0, 1, 2, 4], [0, 2000, 4000, 8000]]
    ((x, y),) = [line.get_data() for line in efficiency.get_lines() if len(line.get_xdata()) == 3]
    assert list(x) == [1, 2, 4]
    np.testing.assert_allclose(y, [1, 0.75, 0.6])
    assert [text.get_text() for text in rates.texts] == ["1.00 x", "1.50 x", "2.40 x"]
    assert [text.get_text() for text in efficiency.texts] == ["100%", "75%", "60%"]
    assert rates.get_xlabel() == efficiency.get_xlabel() == "number of processes"
    assert rates.get_ylabel() == "rows per second"
    assert heading(figure) == "a call of 1200 rows"


def test_weak_scaling_counts_rows_and_linear_begins_at_the_smallest_number():
    results = [{"n": 2, "seconds": 1.0, "rows": 200}, {"n": 4, "seconds": 1.25, "rows": 400}]
    rates, efficiency = plot_scaling(results).axes
    assert drawn(rates, "linear") == [[0, 2, 4], [0, 200, 400]]
    assert [text.get_text() for text in efficiency.texts] == ["100%", "80%"]


def test_of_several_measurements_the_median_is_drawn_and_the_others_are_a_bar():
    rows = [{"n": 1, "seconds": s, "rows": 60} for s in (1.0, 2.0, 3.0)]
    axes = plot_scaling(rows).axes[0]
    assert drawn(axes, "measured") == [[1], [30]]
    (bars,) = axes.collections
    assert [list(map(list, segment)) for segment in bars.get_segments()] == [[[1, 20], [1, 60]]]


def test_many_numbers_of_processes_are_labelled_where_there_is_room():
    axes = plot_scaling([{"n": n, "seconds": 1 / n, "rows": 1} for n in range(1, 65)]).axes[0]
    places = axes.get_xticks()
    assert places[-1] == 64
    assert 4 <= len(places) <= 14
    assert len(axes.texts) == len(places)


@pytest.mark.parametrize(
    "results, message",
    [
        ([], "no measurement"),
        ([{"n": 1, "rows": 3}], "expected a key 'seconds'"),
        ([{"n": 1, "rows": 3, "seconds": 0}], "got 0, expected a number above 0"),
        ([{"n": 1, "rows": 3, "seconds": math.nan}], "got nan"),
        ([{"n": "two", "rows": 3, "seconds": 1}], "got 'two'"),
        ([{"n": 1.5, "rows": 3, "seconds": 1}], "expected a whole number"),
        ([7], "got 7"),
    ],
)
def test_results_that_cannot_be_drawn(results, message):
    with pytest.raises(InputValueError, match=message):
        plot_scaling(results)


def test_results_that_are_no_list():
    with pytest.raises(InputTypeError, match="got dict, expected a list of measurements"):
        plot_scaling(STRONG[0])


# Timeline.


def test_each_span_is_a_box_at_its_time_in_the_lane_of_its_rank(written):
    content = trace(calls=2, ranks=3)
    figure = plot_timeline(written(content))
    (axes,) = figure.axes
    spans = [event for event in content["traceEvents"] if event["ph"] == "X"]
    lanes = {}
    for label in axes.get_yticklabels():
        lanes[label.get_text()] = label.get_position()[1]
    assert list(lanes) == ["rank 0 (master)", "rank 1", "rank 2"]
    assert list(lanes.values()) == sorted(lanes.values())
    assert axes.get_ylim()[0] > axes.get_ylim()[1], "the first rank is at the top"
    borders = [(a + b) / 2 for a, b in zip([*lanes.values()], [*lanes.values()][1:])]
    found = Counter()
    for category in {event["cat"] for event in spans}:
        for left, right, top, bottom in boxes(figure, category):
            lane = sum(top > border for border in borders)
            assert lane == sum(bottom > border for border in borders)
            found[category, lane, round(left, 6), round(right, 6)] += 1
    assert found == Counter(
        (e["cat"], e["pid"], round(e["ts"] / 1e3, 6), round((e["ts"] + e["dur"]) / 1e3, 6))
        for e in spans
    )
    assert axes.get_xlabel() == "time since the beginning of the trace (ms)"
    assert axes.get_xlim() == (0, 4.9)


def test_what_is_nested_stands_below_what_it_is_in(written):
    figure = plot_timeline(written(trace(calls=1)))
    rows = {name: boxes(figure, name)[0][2:] for name in ("call", "compute", "slice")}
    for outer, inner in (("call", "compute"), ("compute", "slice")):
        assert rows[outer][1] < rows[inner][0]
    # Spans that only touch are in one row.
    assert len({box[2] for box in boxes(figure, "slice")}) == 2  # of two ranks


def test_colours_follow_categories_and_the_legend_tells_their_times(written):
    figure = plot_timeline(written(trace(calls=2)))
    for group in figure.axes[0].collections:
        expected = to_rgb(COLOURS[group.get_label()])
        assert {tuple(colour[:3]) for colour in group.get_facecolors()} == {expected}
    # By hand: two calls, two ranks, of which the second computes 800 µs instead of 1000.
    assert set(legend(figure)) == {
        "call  2.00 ms",
        "scatter  300 µs",
        "compute  1.80 ms",
        "slice  1.80 ms",
        "wait  510 µs",
        "reduce  1.20 ms",
        "collective  800 µs",
        "copy  200 µs",
    }


def test_a_category_within_itself_is_counted_once(written):
    content = [span(0, "outer", "call", 0, 100), span(0, "inner", "call", 20, 50)]
    assert legend(plot_timeline(written(content))) == ["call  100 µs"]


def test_names_and_durations_are_written_where_there_is_room(written):
    figure = plot_timeline(written(trace(calls=1)))
    assert {"train  2.00 ms", "compute  1.00 ms", "compute  800 µs"} <= set(texts(figure))
    long = span(0, "gradient, all_reduce(), update", "call", 0, 400)
    shortened = plot_timeline(written([long, span(0, "g", "compute", 400, 1600)]))
    assert any(text.startswith("gradient, all") and text[-1] == "…" for text in texts(shortened))
    blank = plot_timeline(written([span(0, " ", "call", 0, 60), span(0, "g", "compute", 60, 1600)]))
    assert texts(blank) == ["g  1.60 ms"]
    crowded = plot_timeline(written(trace(calls=60)))
    assert not any("compute" in text for text in texts(crowded))


def test_a_window_shows_its_part(written):
    path = written(trace(calls=100))
    figure = plot_timeline(path, window_ms=(100, 102.4))
    assert figure.axes[0].get_xlim() == (100, 102.4)
    assert len(boxes(figure, "call")) == 1
    assert heading(figure) == "Timeline of 2 ranks: 100 to 102.4 ms"
    assert "train  2.00 ms" in texts(figure)
    # Half of the call: its time in the window counts.
    assert "call  500 µs" in legend(plot_timeline(path, window_ms=(100, 101)))


def test_areas_are_times_also_when_spans_are_too_short_to_be_seen(written):
    content = trace(calls=1500, ranks=3)
    figure = plot_timeline(written(content))
    spans = [event for event in content["traceEvents"] if event["ph"] == "X"]
    assert len(spans) > 25_000
    drawn_boxes = 0
    for category in {event["cat"] for event in spans}:
        found = boxes(figure, category)
        drawn_boxes += len(found)
        area = sum((right - left) * (bottom - top) for left, right, top, bottom in found)
        seconds = sum(event["dur"] for event in spans if event["cat"] == category) / 1e6
        # A row of the picture is 0.92 high.
        assert area / 0.92 == pytest.approx(seconds, rel=1e-6), category
    assert drawn_boxes < 12_000, "as many as can be seen, however many spans there are"
    assert "stacked by its share" in figure.axes[0].get_xlabel()


def test_a_rank_without_spans_has_its_lane_and_other_categories_are_grey(written):
    content = [
        process_name(0, "rank 0 (master)"),
        process_name(1, "rank 1"),
        span(0, "$x_1^$", "of my own", 0, 10),
    ]
    figure = plot_timeline(written({"traceEvents": content}))
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["rank 0 (master)", "rank 1"]
    assert figure.axes[0].collections[0].get_label() == "of my own"
    figure.savefig(written("", "formula.png"))  # what looks like a formula is none


def test_threads_of_a_rank_have_rows_of_their_own(written):
    events = [span(0, "a", "compute", 0, 100), {**span(0, "b", "compute", 50, 100), "tid": 1}]
    (first, second) = boxes(plot_timeline(written({"traceEvents": events})), "compute")
    assert first[3] < second[2]


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "got an empty file"),
        ('{"traceEvents": [', "got invalid JSON .*stop"),
        ({"events": []}, r"got JSON with \['events'\]"),
        ("7", "got JSON with int"),
        ({"traceEvents": []}, "trace of 0 events without any span"),
        ({"traceEvents": [process_name(0, "rank 0")]}, "without any span"),
        ({"traceEvents": [3]}, "got event 0 3"),
        ({"traceEvents": [{"ph": "X", "name": "f", "ts": 1, "pid": 0}]}, "got 'dur': None"),
        ({"traceEvents": [{"ph": "X", "name": "f", "ts": "a", "dur": 1, "pid": 0}]}, "'ts': 'a'"),
        ({"traceEvents": [{"ph": "X", "name": "f", "ts": 0, "dur": -1, "pid": 0}]}, "-1"),
        ({"traceEvents": [{"ph": "X", "name": "f", "ts": 0, "dur": 1}]}, "'pid': None"),
        ({"traceEvents": [{"ph": "X", "ts": 10**400, "dur": 1, "pid": 0}]}, "'ts': 1000"),
        ({"traceEvents": [{**process_name(0, ""), "args": [1]}]}, "without any span"),
    ],
)
def test_a_file_that_is_no_trace(written, content, message):
    with pytest.raises(InputValueError, match=message) as caught:
        plot_timeline(written(content))
    assert "expected" in str(caught.value)
    assert "synkhronos.timeline(path)" in str(caught.value)


@pytest.mark.parametrize(
    "window, error, message",
    [
        ((5, 5), InputValueError, "the first millisecond before the last"),
        ((90, 95), InputValueError, "nothing happens in .*0 to 4.900 ms"),
        ((1, 2, 3), InputTypeError, "expected two numbers"),
        (7, InputTypeError, "expected two numbers"),
    ],
)
def test_a_window_that_is_none(written, window, error, message):
    with pytest.raises(error, match=message):
        plot_timeline(written(trace(calls=2)), window_ms=window)


@pytest.mark.parametrize(
    "microseconds, text",
    [
        (0, "0.00 µs"),
        (4.2, "4.20 µs"),
        (99.96, "100 µs"),
        (999.6, "1.00 ms"),
        (12_345, "12.3 ms"),
        (2.5e6, "2.50 s"),
        (3.6e9, "3600 s"),
    ],
)
def test_durations_have_three_digits(microseconds, text):
    assert duration(microseconds) == text


# Training.

LOG = """epoch,step,seconds,train_loss,valid_loss,train_error,valid_error,norm,learning_rate
1,10,0.5,2.0,2.1,0.9,0.8,4.0,0.1
2,20,0.5,1.0,,0.5,,3.0,0.1
3,30,0.5,0.5,0.9,0.3,0.4,2.0,0.001
4,40,0.5,0.4,1.1,0.2,0.45,1.0,0.001
"""


def check_training(figure):
    loss, error, norm, rate = figure.axes
    assert drawn(loss, "train_loss") == [[1, 2, 3, 4], [2.0, 1.0, 0.5, 0.4]]
    np.testing.assert_equal(drawn(loss, "valid_loss")[1], [2.1, math.nan, 0.9, 1.1])
    assert drawn(loss, "lowest: 0.9 (epoch 3)") == [[3], [0.9]]
    assert drawn(error, "train_error")[1] == [0.9, 0.5, 0.3, 0.2]
    assert drawn(norm, "norm")[1] == [4, 3, 2, 1]
    assert drawn(rate, "learning_rate") == [[1, 2, 3, 4], [0.1, 0.1, 0.001, 0.001]]
    assert rate.get_yaxis().get_label_position() == "right"
    assert rate.get_position().bounds == loss.get_position().bounds
    assert rate.get_yscale() == "log"
    assert error.get_yscale() == "linear"
    names = [axes.get_ylabel() for axes in figure.axes]
    assert names == ["loss", "error", "norm", "learning rate"]
    assert norm.get_xlabel() == "epoch"
    shown = [text.get_text() for text in loss.get_legend().get_texts()]
    assert shown == ["train_loss", "valid_loss", "lowest: 0.9 (epoch 3)", "learning_rate"]


def test_training_curves_of_csv(written):
    check_training(plot_training(written(LOG)))


def test_training_curves_of_json_lines(written):
    header, *lines = (line.split(",") for line in LOG.splitlines())
    rows = [dict(zip(header, map(to_json, line))) for line in lines]
    check_training(plot_training(written("\n".join(map(json.dumps, rows)))))


def test_only_losses_and_rates_are_on_logarithmic_axes(written):
    log = "epoch,train_loss,valid_accuracy,aux_loss,learning_rate\n"
    log += "1,20,0.05,9,0.1\n2,1,0.99,0.1,0.001\n"
    scales = {axes.get_ylabel(): axes.get_yscale() for axes in plot_training(written(log)).axes}
    assert scales == {
        "loss": "log",
        "accuracy": "linear",
        "aux_loss": "log",
        "learning rate": "log",
    }


def to_json(cell):
    return float(cell) if cell else None


def test_what_was_not_measured_is_not_drawn(written):
    log = "epoch,step,seconds,train_loss,valid_loss,learning_rate\n1,1,0.1,0.5,,\n"
    (axes,) = plot_training(written(log)).axes
    assert [line.get_label() for line in axes.get_lines()] == ["train_loss"]


def test_a_loss_that_became_infinite_is_drawn_as_far_as_it_goes(written, tmp_path):
    log = "epoch,train_loss,valid_loss\n1,0.5,inf\n2,inf,nan\n3,nan,nan\n"
    figure = plot_training(written(log), tmp_path / "infinite.png")
    assert drawn(figure.axes[0], "train_loss")[1][:2] == [0.5, math.inf]


@pytest.mark.parametrize(
    "content, message",
    [
        ("", "got an empty file"),
        ("epoch,train_loss\n", "without an epoch"),
        ("loss,rate\n1,2\n", r"got columns \['loss', 'rate'\]"),
        ("epoch,train_loss\n1,2,3\n", ":2: got 3 values, expected 2 as in the header"),
        ("epoch,train_loss\n1,much\n", ":2: got train_loss = 'much'"),
        ("epoch,train_loss\n,1.0\n", "a line without an epoch"),
        ("epoch,seconds\n1,2.0\n", "nothing to draw"),
        ('{"epoch": 1, "train_loss": 2}\n{"epoch"', ":2: got invalid JSON"),
        ('{"epoch": 1, "train_loss": 2}\n[3]', r":2: got '\[3\]'"),
        ('{"epoch": 1, "train_loss": [1]}', r"got train_loss = \[1\]"),
        (f'{{"epoch": 1, "train_loss": {10**400}}}', "got train_loss = 1000"),
        ('{"epoch": ' + "[" * 100_000, ":1: got invalid JSON"),
        ("epoch,train_loss\n1," + "2" * 200_000, "got no CSV"),
    ],
)
def test_a_file_that_is_no_log(written, content, message):
    with pytest.raises(InputValueError, match=message) as caught:
        plot_training(written(content))
    assert "expected" in str(caught.value)
    assert "Trainer" in str(caught.value)


def test_a_picture_is_no_log(tmp_path):
    plot_scaling(STRONG, tmp_path / "a.png")
    with pytest.raises(InputValueError, match="a file that is not text"):
        plot_training(tmp_path / "a.png")


# All of them.


@pytest.fixture
def pictures(written):
    """A function for each picture, that takes the path to write."""
    timeline, log = written(trace(calls=2), "trace.json"), written(LOG, "log.csv")
    return {
        "scaling": lambda path=None: plot_scaling(STRONG, path),
        "timeline": lambda path=None: plot_timeline(timeline, path),
        "training": lambda path=None: plot_training(log, path),
    }


@pytest.mark.parametrize("name", ["scaling", "timeline", "training"])
def test_figures_are_written_and_show_themselves(pictures, name, tmp_path):
    figure = pictures[name](tmp_path / "a.png")
    assert isinstance(figure, Figure)
    assert heading(figure)
    pixels = (imread(tmp_path / "a.png") * 255).astype("uint8")
    assert len(np.unique(pixels.view("uint32"))) > 10, "not a blank sheet"
    assert figure._repr_png_().startswith(b"\x89PNG")
    pictures[name](str(tmp_path / "without_suffix"))
    assert (tmp_path / "without_suffix.png").is_file()
    pictures[name](tmp_path / "a.svg")
    assert ET.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")
    before = set(tmp_path.iterdir())
    pictures[name]()
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["scaling", "timeline", "training"])
def test_no_text_is_cut_off_or_too_small(pictures, name):
    figure = pictures[name]()
    FigureCanvasAgg(figure).draw()
    width, height = figure.bbox.size
    for text in figure.findobj(Text):
        if text.get_text() and text.get_visible():
            box = text.get_window_extent()
            inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1
            on_axis = any(text in axis.get_ticklabels() for axis in axes_of(figure))
            assert inside or on_axis, text
            assert text.get_fontsize() >= 8


def axes_of(figure):
    return [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]


def test_missing_files_are_missing_files(tmp_path):
    for plot in (plot_timeline, plot_training):
        with pytest.raises(FileNotFoundError, match=r"nowhere\.json"):
            plot(tmp_path / "nowhere.json")


def test_plots_leave_pyplot_and_its_backend_alone():
    program = """if True:
        import sys
        from synkhronos.extensions import plots
        assert not any(name.startswith("matplotlib") for name in sys.modules), "imported late"
        plots.plot_scaling([{"n": 1, "seconds": 1, "rows": 1}])._repr_png_()
        assert "matplotlib.pyplot" not in sys.modules
        import matplotlib
        assert matplotlib.rcParams._get_backend_or_none() is None, "none was chosen"
    """
    done = zygote().run(program)
    assert done.status == 0, done.err


@pytest.mark.parametrize("name", ["scaling", "timeline", "training"])
def test_without_matplotlib_the_cure_is_told(pictures, name, monkeypatch):
    for module in [module for module in sys.modules if module.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'synkhronos\[plot\]'") as caught:
        pictures[name]()
    assert not isinstance(caught.value, SynkError)


# Colours as people without one kind of cones see them: the matrices of Machado, Oliveira and
# Fernandes, "A physiologically-based model for simulation of color vision deficiency" (2009),
# severity 1.0, for linear RGB.
SIGHT = {
    "all cones": np.eye(3),
    "no L cones": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no M cones": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}


@pytest.mark.parametrize("sight", SIGHT)
def test_the_colours_of_categories_can_be_told_apart(sight):
    seen = {name: lab(np.array(SIGHT[sight]) @ linear(c)) for name, c in COLOURS.items()}
    distances = {
        pair: float(np.linalg.norm(seen[pair[0]] - seen[pair[1]]))
        for pair in itertools.combinations(seen, 2)
    }
    nearest = min(distances, key=distances.get)
    # CIE76: 2.3 is just noticed.
    assert distances[nearest] > 10, nearest


def linear(colour):
    rgb = np.array(to_rgb(colour))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    to_xyz = [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
    xyz = np.array(to_xyz) @ np.clip(rgb, 0, 1) / [0.95047, 1.0, 1.08883]
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])
