"""Thinning keeps extremes and gaps, ticks are round values, and plot_run draws the records of a run."""

import subprocess
import sys
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.pretraining.made_runs import ENTROPY, make_run, metrics

from openalbert.report.charts import KEPT_OF_A_STRETCH, Scale, plot_run, scale_for, thin, ticks
from openalbert.report.run_reader import read_run

CURVES = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=300).map(lambda v: np.array(v, np.float64))


@given(CURVES, st.integers(5, 60))
def test_thinning_keeps_ends_extremes_and_gaps(values: np.ndarray, most: int) -> None:
    kept = thin(values, most)
    assert len(kept) <= max(most, KEPT_OF_A_STRETCH)
    assert (np.diff(kept) > 0).all()
    if len(values):
        assert kept[0] == 0
        assert kept[-1] == len(values) - 1
    finite = values[np.isfinite(values)]
    if len(finite):
        left = values[kept][np.isfinite(values[kept])]
        assert left.min() == finite.min()
        assert left.max() == finite.max()
    assert np.isfinite(values).all() == np.isfinite(values[kept]).all()


def test_every_stretch_of_a_long_curve_keeps_its_own_extremes() -> None:
    values = np.random.default_rng(0).normal(size=1_000_000)
    values[123_456] = 50.0
    values[777_777] = -50.0
    kept = thin(values, 1000)
    assert {123_456, 777_777} <= set(kept.tolist())
    for stretch, places in zip(np.split(values, 200), np.split(np.arange(1_000_000), 200), strict=True):
        mine = values[kept[(kept >= places[0]) & (kept <= places[-1])]]
        assert (mine.min(), mine.max()) == (stretch.min(), stretch.max())


def test_a_short_curve_is_kept_whole() -> None:
    assert thin(np.arange(12.0), 12).tolist() == list(range(12))


@given(
    st.floats(-1e9, 1e9, allow_subnormal=False),
    st.floats(1e-6, 1e9, allow_subnormal=False),
    st.integers(2, 8),
)
def test_ticks_are_round_few_and_within_the_scale(low: float, span: float, wanted: int) -> None:
    high = low + span
    if high - low < 1e-6 * max(abs(low), abs(high)):
        return
    scale = Scale(low, high, 0.0, 100.0)
    found = ticks(scale, wanted)
    assert 1 <= len(found) + (wanted < 3) <= wanted + 2
    room = 1e-6 * span
    assert all(low - room <= value <= high + room for value in found)
    steps = np.diff(found)
    if len(steps):
        first = f"{steps[0]:.3e}"[0]
        assert first in "12594"  # 1, 2 and 5, and what rounding leaves of them
        np.testing.assert_allclose(steps, steps[0], rtol=1e-3)


def test_a_logarithmic_axis_names_powers_of_ten() -> None:
    assert ticks(Scale(0.05, 300.0, 0.0, 1.0, log=True)) == [0.1, 1.0, 10.0, 100.0]
    assert ticks(Scale(0.8, 12.0, 0.0, 1.0, log=True)) == [1.0, 2.0, 5.0, 10.0]
    assert ticks(Scale(0.7, 1.9, 0.0, 1.0, log=True)) == [1.0, 1.5]  # less than a decade
    assert len(ticks(Scale(1e-30, 1e30, 0.0, 1.0, log=True))) <= 6


def test_a_scale_holds_every_finite_value() -> None:
    values = np.array([3.0, np.nan, np.inf, -2.0])
    scale = scale_for(values, 200.0, 0.0)
    assert 0 < scale.place(3.0) < scale.place(-2.0) < 200
    alone = scale_for(np.array([7.0, 7.0]), 200.0, 0.0)
    assert alone.place(0.0) == 200.0
    assert 0 < alone.place(7.0) < 20
    nothing = scale_for(np.array([np.nan]), 200.0, 0.0, log=True)
    assert nothing.low < nothing.high
    assert scale_for(np.array([2.0, 9.0]), 200.0, 0.0, from_zero=True).low == 0


def test_a_constant_percentage_has_no_axis_below_0_or_above_100_percent() -> None:
    for percent in (0.0, 100.0, 37.5):
        shown = ticks(scale_for(np.full(9, percent), 200.0, 0.0))
        assert len(shown) > 1
        assert 0 <= min(shown) <= max(shown) <= 100
    below = scale_for(np.array([-3.0, -3.0]), 200.0, 0.0)
    assert (below.high, ticks(below)[-1]) == (0, 0)
    assert below.low < -3


def test_plot_run_draws_the_records_of_a_pretraining_run(tmp_path: Path) -> None:
    lines = metrics(40)
    figure = plot_run(read_run(make_run(tmp_path / "run", lines=lines)))
    axes = {axis.get_title(): axis for axis in figure.axes if axis.get_title()}
    assert {"MLM loss", "MLM accuracy", "SOP accuracy", "Learning rate", "Throughput"} <= axes.keys()
    training, held_out, level = axes["MLM loss"].get_lines()
    for line, kind in ((training, "train"), (held_out, "evaluation")):
        records = [record for record in lines if record["kind"] == kind]
        np.testing.assert_array_equal(line.get_xdata(), [record["step"] for record in records])
        np.testing.assert_array_equal(line.get_ydata(), [record["mlm_loss"] for record in records])
    assert level.get_ydata() == [ENTROPY, ENTROPY]
    last = [record for record in lines if record["kind"] == "train"][-1]
    assert axes["SOP accuracy"].get_lines()[0].get_ydata()[-1] == 100 * last["sop_acc"]
    assert axes["Gradient norm"].get_yscale() == "log"
    figure.savefig(tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 10_000


def test_plot_run_draws_the_metrics_of_a_fine_tuning_run_and_leaves_no_figure_open(quick_runs: dict[str, Path]) -> None:
    from matplotlib import pyplot

    open_before = pyplot.get_fignums()  # of other tests in this process
    figure = plot_run(read_run(quick_runs["classification"]))
    titles = [axis.get_title() for axis in figure.axes]
    assert titles[:2] == ["Accuracy", "Training loss"]
    assert {"Matthews", "Learning rate", "Throughput"} <= set(titles)
    assert pyplot.get_fignums() == open_before


def test_plot_run_of_a_run_without_records_is_an_empty_figure(tmp_path: Path) -> None:
    assert not [axis for axis in plot_run(read_run(make_run(tmp_path / "run", lines=[]))).axes if axis.has_data()]


def test_matplotlib_is_imported_only_to_plot() -> None:
    code = "import sys, openalbert.report.report; assert 'matplotlib' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
