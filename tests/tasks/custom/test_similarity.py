"""The columns of similar texts: pairs, triplets, scores, and files that could be misread."""

import json
from pathlib import Path

import pytest

from openalbert.errors import UserError
from openalbert.tasks.metrics import Retrieved, measure_similarity, metric_names
from openalbert.tasks.registry import TaskSource, open_task
from openalbert.tasks.task import SimilarityExample, Task, TaskMetadata


def opened(folder: Path, train: str, dev: str | None = None, **columns: str) -> Task:
    (folder / "train.csv").write_text(train)
    files = {"train": folder / "train.csv"}
    if dev is not None:
        (folder / "dev.csv").write_text(dev)
        files["dev"] = folder / "dev.csv"
    return open_task("similarity", TaskSource(**files, **columns))  # type: ignore[arg-type]


def texts(task: Task, split: str = "train") -> list[tuple[object, ...]]:
    examples = task.read(split).examples
    return [(e.first, e.second, e.negative, e.score) for e in examples if isinstance(e, SimilarityExample)]


DEV = "anchor,positive\nq,r\ns,t\n"


@pytest.mark.parametrize(
    ("train", "expected", "form"),
    [
        ("anchor,positive\na b,c d\ne,f\n", ("a b", "c d", None, None), "pairs"),
        ("query,positive\na b,c d\ne,f\n", ("a b", "c d", None, None), "pairs"),
        ("positive,anchor\nc d,a b\nf,e\n", ("a b", "c d", None, None), "pairs"),
        ("sentence1,sentence2\na b,c d\ne,f\n", ("a b", "c d", None, None), "pairs"),
        ("question,answer\na b,c d\ne f g,h\n", ("a b", "c d", None, None), "pairs"),
        ("negative,anchor,positive\nx y,a b,c d\nz,e,f\n", ("a b", "c d", "x y", None), "triplets"),
        ("sent0,sent1,hard_neg\na b,c d,x y\ne,f,z\n", ("a b", "c d", "x y", None), "triplets"),
        ("sentence1,sentence2,score\na b,c d,4.5\ne,f,1\n", ("a b", "c d", None, 4.5), "scored pairs"),
        ("text_a,text_b,similarity\na b,c d,0\ne,f,1\n", ("a b", "c d", None, 0.0), "scored pairs"),
        ("index,sentence1,sentence2,label\n0,a b,c d,0\n1,e,f,1\n", ("a b", "c d", None, 0.0), "scored pairs"),
    ],
)
def test_columns_are_found_by_their_names(train: str, expected: tuple[object, ...], form: str, tmp_path: Path) -> None:
    task = opened(tmp_path, train, DEV)
    assert texts(task)[0] == expected
    assert any(f"read as {form}" in remark for remark in task.read("train").remarks)


def test_columns_can_be_named(tmp_path: Path) -> None:
    train = "one,two,three,four\na b,c d,x y,3\ne f,g h,z w,5\n"
    pairs = opened(tmp_path, train, train, text_column="two", second_column="one", label_column="four")
    assert texts(pairs)[0] == ("c d", "a b", None, 3.0)
    triplets = opened(tmp_path, train, train, text_column="two", second_column="one", negative_column="three")
    assert texts(triplets)[0] == ("c d", "a b", "x y", None)


def test_the_main_metric_is_that_of_the_file_that_is_scored_on(tmp_path: Path) -> None:
    pairs, triplets = "anchor,positive\na,b\nc,d\n", "anchor,positive,negative\na,b,x\nc,d,y\n"
    scored = "sentence1,sentence2,score\na,b,1\nc,d,2\n"
    assert opened(tmp_path, pairs, scored).main_metric == "spearman"
    assert opened(tmp_path, scored, triplets).main_metric == "accuracy"
    assert opened(tmp_path, triplets, pairs).main_metric == "mrr"
    assert metric_names(opened(tmp_path, pairs, scored), [SimilarityExample("0", "a", "b", score=1.0)] * 2) == (
        "spearman",
        "pearson",
        "loss",
    )
    assert metric_names(opened(tmp_path, pairs), [SimilarityExample("0", "a", "b", "c")]) == (
        "accuracy",
        "mrr",
        "accuracy_at_1",
        "loss",
    )


@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        ("text\na b c d e\nf g h i j\n", "similarity needs two texts a row"),
        ("question1,question2,is_duplicate\na,b,1\nc,d,0\ne,f,1\n", "--label-column is_duplicate (2 values)"),
        ("sentence1,sentence2,label\na,b,entailment\nc,d,neutral\n", "'label' has 'entailment', but a score"),
        ("anchor,positive,negative,score\na,b,c,1\nd,e,f,2\n", "has a score in 'score' and a negative in 'negative'"),
        ("sentence1,sentence2,score,rating\na,b,1,2\nc,d,2,2\n", "which column is the label?"),
        ("sentence1,sentence2,score\na,b,1\nc,d,much\n", "'score' has 'much', but a score"),
    ],
)
def test_files_that_could_be_misread_are_refused(train: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        opened(tmp_path, train, DEV).read("train")
    assert sentence in str(refused.value)


def test_rows_that_cannot_be_learned_from_are_counted(tmp_path: Path) -> None:
    rows = "anchor,positive,negative\na,b,c\n,b,c\na,,c\na,b,\na,b,b\na,b,a\nd,e,f\n"
    reading = opened(tmp_path, rows, DEV).read("train")
    assert len(reading.examples) == 2
    assert {reason.split(" (")[0]: count for reason, count in reading.excluded.items()} == {
        "without a text": 3,
        "whose negative is one of its other texts": 2,
    }
    scored = opened(tmp_path, "sentence1,sentence2,score\na,b,1\nc,d,\ne,f,3\n", DEV).read("train")
    assert [reason.split(" (")[0] for reason in scored.excluded] == ["without a score"]


def test_a_model_reads_other_files_by_the_columns_it_was_trained_on(tmp_path: Path) -> None:
    path = tmp_path / "new.jsonl"
    rows = [{"left text": "a b", "right text": "c d", "anchor": "no", "positive": "no"}, {"left text": "e"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    layout = {"text": "left text", "second": "right text"}
    task = open_task("similarity", TaskSource(test=path), TaskMetadata(layout=layout))
    assert [(e.first, e.second, e.is_labelled) for e in task.read("test").examples] == [  # type: ignore[union-attr]
        ("a b", "c d", False),
        ("e", "", False),
    ]


def test_examples_of_one_anchor_are_held_out_together(tmp_path: Path) -> None:
    rows = "".join(f"anchor {number // 4},positive {number}\n" for number in range(80))
    task = opened(tmp_path, f"anchor,positive\n{rows}")
    train, dev = ({first for first, *_ in texts(task, split)} for split in ("train", "dev"))
    assert dev
    assert not train & dev


def test_metrics_of_retrieval_are_means_over_ranks() -> None:
    examples = [SimilarityExample(str(number), "a", "b", "c") for number in range(4)]
    found = [Retrieved(1, 0.9, 0.1), Retrieved(2, 0.5, 0.6), Retrieved(4, 0.4, 0.4), Retrieved(1, 0.3, -0.2)]
    assert measure_similarity(examples, found) == {
        "accuracy": 50.0,
        "mrr": pytest.approx(100 * (1 + 1 / 2 + 1 / 4 + 1) / 4),
        "accuracy_at_1": 50.0,
    }


def test_cosines_that_are_no_numbers_are_as_bad_as_can_be() -> None:
    examples = [SimilarityExample(str(number), "a", "b", score=float(number)) for number in range(3)]
    assert measure_similarity(examples, [0.1, float("nan"), 0.3]) == {"spearman": -100.0, "pearson": -100.0}
    assert measure_similarity(examples, [0.1, 0.2, 0.3])["spearman"] == pytest.approx(100)
