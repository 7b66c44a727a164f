"""The paper's figures stand beside the figures that its tasks are measured by here."""

from dataclasses import replace

import pytest

from openalbert.model.config import AlbertConfig
from openalbert.model.presets import PRESETS
from openalbert.tasks.paper_scores import BEST_SINGLE, DEV_SIZES, TABLE_2, compare_dev_sets, reported, shape_of
from openalbert.tasks.registry import GLUE, TASKS


def test_every_model_of_table_2_is_known_by_its_shape_whatever_its_vocabulary_and_dropout() -> None:
    for name in TABLE_2:
        assert shape_of(replace(PRESETS[name], vocab_size=99, hidden_dropout=0.3, num_heads=2)) == name
    assert shape_of(PRESETS["albert-base-v2"]) == "albert-base"
    assert shape_of(replace(PRESETS["albert-base"], num_layers=6)) == ""
    assert shape_of(PRESETS["albert-micro"]) == ""
    assert shape_of(AlbertConfig()) == "albert-base"


def test_every_metric_of_the_paper_is_one_that_its_task_has_here() -> None:
    main = {name: task.main_metric for name, task in GLUE.items()}
    main |= {"squad1": "f1", "squad2": "f1", "race": "accuracy"}
    for rows in (*TABLE_2.values(), BEST_SINGLE):
        assert rows.keys() <= TASKS.keys()
        for task, scores in rows.items():
            assert main[task] in scores
            assert set(scores) <= {main[task], "exact_match"}


def test_the_average_of_each_row_is_the_one_that_table_2_prints() -> None:
    printed = {"bert-base": 82.3, "bert-large": 85.2, "albert-base": 80.1, "albert-large": 82.4, "albert-xlarge": 85.5}
    for name, average in {**printed, "albert-xxlarge": 88.7}.items():
        means = [sum(scores.values()) / len(scores) for scores in TABLE_2[name].values()]
        assert sum(means) / 5 == pytest.approx(average, abs=0.11)  # the paper rounds what it has more digits of


def test_a_model_of_another_shape_stands_beside_albert_base_and_an_own_task_beside_nothing() -> None:
    assert reported("sst2", "")[0].model == "the paper's albert-base"
    assert reported("sst2", "albert-large")[0].scores == {"accuracy": 91.7}
    assert [row.scores for row in reported("cola", "albert-large")] == [{"matthews": 71.4}]
    assert reported("classification", "albert-base") == []


def test_scores_on_other_examples_than_the_papers_are_reported_to_be() -> None:
    assert DEV_SIZES.keys() >= {*BEST_SINGLE, *TABLE_2["albert-base"]}
    for task, sizes in DEV_SIZES.items():
        whose = "The paper's scores are" if task == "race" else "Scores"
        assert compare_dev_sets(task, sizes).startswith(f"{whose} on the official dev set")
    sentence = "The paper's scores are on the official dev set of 1,043 examples."
    assert compare_dev_sets("cola", {"dev": None}) == sentence
    assert compare_dev_sets("squad2", {"dev": 240}) == (
        "The paper's scores are on the official dev set of 11,873 examples; dev of 240 examples is not that one, "
        "so its scores are not comparable with the paper's example by example."
    )
    assert compare_dev_sets("mnli", {"dev_matched": 9_815, "heldout": 1, "test": 9_815}) == (
        "The paper's scores are on the official dev sets of 9,815 and 9,832 examples, as dev_matched here is; heldout "
        "of 1 example and test of 9,815 examples are not those, so their scores are not comparable with the paper's "
        "example by example."
    )
    assert compare_dev_sets("mnli", {"dev_matched": 9_815, "dev_mismatched": 9_832, "heldout": 500}) == (
        "The paper's scores are on the official dev sets of 9,815 and 9,832 examples, as dev_matched and "
        "dev_mismatched here are; heldout of 500 examples is not one of those, so its scores are not comparable with "
        "the paper's example by example."
    )


def test_of_race_the_best_single_model_is_reported_to_be_scored_on_the_test_set() -> None:
    official = "The paper's scores are on the official dev set of 4,887 examples, except those of its best single model"
    assert compare_dev_sets("race", {"dev": 4_887}) == f"{official}, which are on the test set."
    other = f"{official}, which are on the test set; dev of 80 examples is not"
    assert compare_dev_sets("race", {"dev": 80}).startswith(other)
    assert "(test set, " in reported("race", "")[1].model
