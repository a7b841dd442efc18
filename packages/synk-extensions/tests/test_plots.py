"""Plots, by what is in the figures: positions and texts, compared with what was put in."""

from __future__ import annotations

import math
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from _programs import zygote

from synkhronos.exceptions import InputTypeError, InputValueError, SynkError
from synkhronos.extensions.plots import plot_scaling, plot_training

pytest.importorskip("matplotlib", reason="matplotlib is an extra")
from matplotlib.figure import Figure
from matplotlib.image import imread

STRONG = [{"n": n, "seconds": s, "rows": 1200} for n, s in ((1, 0.6), (2, 0.4), (4, 0.25))]
LOG = """epoch,step,seconds,train_loss,valid_loss,train_error,valid_error,norm,learning_rate
1,10,0.5,2.0,2.1,0.9,0.8,4.0,0.1
2,20,0.5,1.0,,0.5,,3.0,0.1
3,30,0.5,0.5,0.9,0.3,0.4,2.0,0.001
4,40,0.5,0.4,1.1,0.2,0.45,1.0,0.001
"""


@pytest.fixture
def written(tmp_path):
    def write(content, name="file"):
        path = tmp_path / name
        path.write_text(content)
        return path

    return write


def drawn(axes, label):
    (line,) = [line for line in axes.get_lines() if line.get_label() == label]
    return [list(values) for values in line.get_data()]


def test_scaling_is_measured_rates_beside_linear_ones():
    figure = plot_scaling(STRONG[::-1], title="a call of 1200 rows")
    rates, efficiency = figure.axes
    assert drawn(rates, "measured") == [[1, 2, 4], [2000, 3000, 4800]]
    assert drawn(rates, "linear") == [[0, 1, 2, 4], [0, 2000, 4000, 8000]]
    np.testing.assert_allclose(efficiency.get_lines()[1].get_ydata(), [1, 0.75, 0.6])
    assert [text.get_text() for text in rates.texts] == ["1.00 x", "1.50 x", "2.40 x"]
    assert [text.get_text() for text in efficiency.texts] == ["100%", "75%", "60%"]
    assert figure.texts[0].get_text() == "a call of 1200 rows"
    results = [{"n": 2, "seconds": 1.0, "rows": 200}, {"n": 4, "seconds": 1.25, "rows": 400}]
    rates, efficiency = plot_scaling(results).axes
    assert drawn(rates, "linear") == [[0, 2, 4], [0, 200, 400]]
    assert [text.get_text() for text in efficiency.texts] == ["100%", "80%"]
    rows = [{"n": 1, "seconds": s, "rows": 60} for s in (1.0, 2.0, 3.0)]
    axes = plot_scaling(rows).axes[0]
    assert drawn(axes, "measured") == [[1], [30]]
    (bars,) = axes.collections
    assert [segment.tolist() for segment in bars.get_segments()] == [[[1, 20], [1, 60]]]


def test_results_that_cannot_be_drawn():
    for results, message in (
        ([], "no measurement"),
        ([{"n": 1, "rows": 3}], "expected a key 'seconds'"),
        ([{"n": 1, "rows": 3, "seconds": 0}], "got 0, expected a number above 0"),
        ([{"n": 1, "rows": 3, "seconds": math.nan}], "got nan"),
        ([{"n": "two", "rows": 3, "seconds": 1}], "got 'two'"),
        ([{"n": 1.5, "rows": 3, "seconds": 1}], "expected a whole number"),
        ([7], "got 7"),
    ):
        with pytest.raises(InputValueError, match=message):
            plot_scaling(results)
    with pytest.raises(InputTypeError, match="got dict, expected a list of measurements"):
        plot_scaling(STRONG[0])


def test_training_curves(written):
    loss, error, norm, rate = plot_training(written(LOG)).axes
    assert drawn(loss, "train_loss") == [[1, 2, 3, 4], [2.0, 1.0, 0.5, 0.4]]
    np.testing.assert_equal(drawn(loss, "valid_loss")[1], [2.1, math.nan, 0.9, 1.1])
    assert drawn(loss, "lowest: 0.9 (epoch 3)") == [[3], [0.9]]
    assert drawn(error, "train_error")[1] == [0.9, 0.5, 0.3, 0.2]
    assert drawn(norm, "norm")[1] == [4, 3, 2, 1]
    assert drawn(rate, "learning_rate") == [[1, 2, 3, 4], [0.1, 0.1, 0.001, 0.001]]
    assert rate.get_yaxis().get_label_position() == "right"
    names = [axes.get_ylabel() for axes in (loss, error, norm, rate)]
    assert names == ["loss", "error", "norm", "learning rate"]
    assert norm.get_xlabel() == "epoch"
    shown = [text.get_text() for text in loss.get_legend().get_texts()]
    assert shown == ["train_loss", "valid_loss", "lowest: 0.9 (epoch 3)", "learning_rate"]


def test_scales_gaps_and_infinities(written, tmp_path):
    log = "epoch,train_loss,valid_accuracy,aux_loss,learning_rate\n"
    log += "1,20,0.05,9,0.1\n2,1,0.99,0.1,0.001\n"
    scales = {axes.get_ylabel(): axes.get_yscale() for axes in plot_training(written(log)).axes}
    losses = dict.fromkeys(("loss", "aux_loss", "learning rate"), "log")
    assert scales == {**losses, "accuracy": "linear"}
    log = "epoch,step,seconds,train_loss,valid_loss,learning_rate\n1,1,0.1,0.5,,\n"
    (axes,) = plot_training(written(log)).axes
    assert [line.get_label() for line in axes.get_lines()] == ["train_loss"]
    log = "epoch,train_loss,valid_loss,$x_1^$\n1,0.5,inf,1\n2,inf,nan,1\n3,nan,nan,1\n"
    figure = plot_training(written(log), tmp_path / "infinite.png")
    assert drawn(figure.axes[0], "train_loss")[1][:2] == [0.5, math.inf]


def test_a_file_that_is_no_log(written, tmp_path):
    for content, message in (
        ("", "without an epoch"),
        ("loss,rate\n1,2\n", r"got columns \['loss', 'rate'\] without"),
        ("epoch,train_loss\n1,2,3\n", "got no log"),
        ("epoch,train_loss\n1,much\n", "could not convert string to float: 'much'"),
        ("epoch,seconds\n1,2.0\n", "nothing to draw"),
        ("epoch,train_loss\n1," + "2" * 200_000, "got no log"),
    ):
        with pytest.raises(InputValueError, match=message) as caught:
            plot_training(written(content))
        assert "expected a log of the Trainer" in str(caught.value)
    plot_scaling(STRONG, tmp_path / "a.png")
    with pytest.raises(InputValueError, match="got no log"):
        plot_training(tmp_path / "a.png")
    with pytest.raises(FileNotFoundError, match=r"nowhere\.csv"):
        plot_training(tmp_path / "nowhere.csv")


def test_figures_are_written_and_show_themselves(written, tmp_path):
    log = written(LOG, "log.csv")
    figure = plot_training(log, tmp_path / "a.png")
    assert isinstance(figure, Figure)
    pixels = (imread(tmp_path / "a.png") * 255).astype("uint8")
    assert len(np.unique(pixels.view("uint32"))) > 10, "not a blank sheet"
    assert figure._repr_png_().startswith(b"\x89PNG")
    plot_scaling(STRONG, str(tmp_path / "without_suffix"))
    assert (tmp_path / "without_suffix.png").is_file()
    plot_scaling(STRONG, tmp_path / "a.svg")
    assert ET.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")


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


def test_without_matplotlib_the_cure_is_reported(monkeypatch):
    for module in [module for module in sys.modules if module.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'synkhronos\[plot\]'") as caught:
        plot_scaling(STRONG)
    assert not isinstance(caught.value, SynkError)
