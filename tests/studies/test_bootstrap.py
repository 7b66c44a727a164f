"""Intervals and verdicts: metrics against scikit-learn and scipy, resamples against scipy's bootstrap."""

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sk

from openalbert.studies.bootstrap import Interval, Observations, interval, names_of, spread, verdict

DICE = np.random.default_rng(5)
LABEL = DICE.integers(0, 2, 200).astype(float)
GUESS = np.where(DICE.random(200) < 0.7, LABEL, 1 - LABEL)
VALUE = DICE.normal(size=200)
NEAR = VALUE + DICE.normal(size=200).round(1)
TIMES = DICE.integers(0, 4, (3, 200)).astype(float)


@pytest.mark.parametrize(
    ("metric", "oracle"),
    [
        ("accuracy", sk.accuracy_score),
        ("matthews", sk.matthews_corrcoef),
        ("f1", sk.f1_score),
    ],
)
def test_metrics_of_classes_count_each_example_as_often_as_scikit_learn_does(metric: str, oracle: object) -> None:
    found = Observations(metric, LABEL, GUESS).score(TIMES)
    expected = [100 * oracle(LABEL, GUESS, sample_weight=row) for row in TIMES]  # type: ignore[operator]
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize(("metric", "oracle"), [("pearson", stats.pearsonr), ("spearman", stats.spearmanr)])
def test_correlations_are_scipys(metric: str, oracle: object) -> None:
    one = Observations(metric, VALUE, NEAR)
    assert one.value == pytest.approx(100 * oracle(VALUE, NEAR).statistic)  # type: ignore[operator]
    if metric == "pearson":
        often = np.repeat(np.arange(200), TIMES[0].astype(int))
        repeated = 100 * stats.pearsonr(VALUE[often], NEAR[often]).statistic
        assert one.score(TIMES[:1])[0] == pytest.approx(repeated)


def test_a_ratio_is_of_sums_and_a_constant_prediction_has_no_correlation() -> None:
    assert Observations("ratio", np.array([4.0, 1.0]), np.array([1.0, 1.0])).value == pytest.approx(40)
    for metric in ("matthews", "pearson"):
        assert Observations(metric, LABEL, np.ones(200)).value == 0


def of(values: np.ndarray) -> Observations:
    return Observations("accuracy", np.ones(len(values)), values)


def test_the_interval_of_one_seed_is_that_of_a_paired_bootstrap_over_examples() -> None:
    better, worse = (DICE.random(500) < rate for rate in (0.8, 0.7))
    found = interval({1: {"a": of(better.astype(float))}}, ["a"], {1: {"a": of(worse.astype(float))}})
    assert found is not None
    difference = better.astype(float) - worse
    expected = stats.bootstrap((difference,), np.mean, method="percentile", rng=DICE).confidence_interval
    assert found.value == pytest.approx(100 * difference.mean())
    assert found.low == pytest.approx(100 * expected.low, abs=1)
    assert found.high == pytest.approx(100 * expected.high, abs=1)


def test_pairing_removes_the_noise_that_both_have() -> None:
    base = (DICE.random(400) < 0.5).astype(float)
    same = {1: {"a": of(base)}}
    paired = interval(same, ["a"], same)
    alone = interval(same, ["a"])
    assert paired == (0, 0, 0, 1)
    assert alone is not None
    assert alone.high - alone.low > 8


def test_noise_between_seeds_widens_an_interval_and_is_reported() -> None:
    def variant(rates: tuple[float, ...]) -> dict[int, dict[str, Observations]]:
        return {seed: {"a": of((np.arange(1000) < 1000 * rate).astype(float))} for seed, rate in enumerate(rates)}

    steady, noisy = variant((0.5, 0.5, 0.5)), variant((0.4, 0.5, 0.6))
    first, second = interval(steady, ["a"]), interval(noisy, ["a"])
    assert first is not None
    assert second is not None
    assert first.value == pytest.approx(second.value) == pytest.approx(50)
    assert second.high - second.low > 2 * (first.high - first.low)
    assert second.low < 40
    assert spread(noisy, ["a"]) == pytest.approx(10)
    assert spread(steady, ["a"]) == pytest.approx(0)
    assert spread({1: noisy[1]}, ["a"]) is None


def seeds_of_a_variant(
    dice: np.random.Generator, items: np.ndarray, shift: float
) -> dict[int, dict[str, Observations]]:
    """Three runs: items are differently hard, each run is better or worse by chance, and guesses some of them."""
    runs = items + shift + 0.2 * dice.normal(size=(3, 1)) + 0.3 * dice.normal(size=(3, len(items)))
    return {seed: {"a": of((run > 0).astype(float))} for seed, run in enumerate(runs)}


@pytest.mark.parametrize(("shift", "least", "most"), [(0.0, 0.01, 0.09), (2.0, 0.95, 1.0)])
def test_equal_variants_of_three_seeds_differ_in_5_percent_of_the_cases_and_unequal_ones_nearly_always(
    shift: float, least: float, most: float
) -> None:
    dice = np.random.default_rng(1)
    trials, excluded = 400, 0
    for _ in range(trials):
        items = dice.normal(size=200)
        found = interval(seeds_of_a_variant(dice, items, shift), ["a"], seeds_of_a_variant(dice, items, 0.0))
        assert found is not None
        excluded += found.low > 0 or found.high < 0
    assert least <= excluded / trials <= most


@pytest.mark.parametrize("rates", [(0.3, 0.5), (0.41, 0.41, 0.61), tuple(DICE.normal(0.5, 0.1, 8))])
def test_where_seeds_are_all_the_noise_the_interval_is_students(rates: tuple[float, ...]) -> None:
    one = {seed: {"a": of((np.arange(20_000) < 20_000 * rate).astype(float))} for seed, rate in enumerate(rates)}
    found = interval(one, ["a"])
    assert found is not None
    expected = stats.ttest_1samp(100 * np.array(rates), 0).confidence_interval()
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=0.05)


def test_only_seeds_that_both_variants_have_are_compared_and_an_average_needs_all_its_tasks() -> None:
    right, wrong = of(np.ones(50)), of(np.zeros(50))
    found = interval({1: {"a": right}, 2: {"a": wrong}}, ["a"], {1: {"a": wrong}, 3: {"a": right}})
    assert found is not None
    assert found.value == 100
    assert interval({1: {"a": right}}, ["a"], {2: {"a": right}}) is None
    assert interval({1: {"a": right}}, ["a", "b"]) is None
    both = interval({1: {"a": right, "b": wrong}}, ["a", "b"])
    assert both is not None
    assert both.value == 50


def test_two_variants_differ_only_where_the_interval_excludes_0_or_the_margin() -> None:
    enough = (30.0, 30.0)
    assert verdict(Interval(1, 0.1, 2, 3), 0.0, enough) == "reproduced"
    assert verdict(Interval(1, -0.1, 2, 3), 0.0, enough) == "not decidable"
    assert verdict(Interval(-1, -2, -0.1, 3), 0.0, enough) == "contradicted"
    assert verdict(Interval(0, -0.4, 0.4, 3), 0.5, enough) == "reproduced"
    assert verdict(Interval(0, -0.6, 0.4, 3), 0.5, enough) == "not decidable"
    assert verdict(Interval(-1, -2, -0.6, 3), 0.5, enough) == "contradicted"


def test_below_a_quarter_of_mlm_accuracy_nothing_is_decided() -> None:
    clear = Interval(5, 4, 6, 3)
    assert verdict(clear, 0.0, (25.0, 25.0)) == "reproduced"
    assert verdict(clear, 0.0, (24.9, 40.0)) == "not decidable"
    assert verdict(clear, 0.0, (40.0, None)) == "not decidable"
    assert verdict(None, 0.0, (40.0, 40.0)) == "not decidable"


def test_one_seed_decides_nothing() -> None:
    assert verdict(Interval(5, 4, 6, 1), 0.0, (40.0, 40.0)) == "not decidable"
    assert verdict(Interval(5, 4, 6, 2), 0.0, (40.0, 40.0)) == "reproduced"


def test_an_average_is_of_the_tasks_that_were_fine_tuned_on() -> None:
    assert names_of("average", ()) == ()
    assert names_of("average", ("sst2", "cola")) == ("sst2", "cola")
    assert names_of("sop", ("sst2",)) == ("sop",)
