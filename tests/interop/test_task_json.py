"""What a model folder says of its task: the columns that it learned from are those that it is scored on."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.finetuning.made_lessons import learn

from openalbert.cli import main
from openalbert.interop.task_json import read_task_info, write_task_info

WORDS = "good people time water war old house day".split()


def story(path: Path, header: str) -> Path:
    """Texts that say all in a column that nobody would guess, beside one that says nothing."""
    rows = [f"{number},the time,the {word} {number},{'ab'[number % 2]}" for number, word in enumerate(WORDS * 2)]
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_the_columns_named_in_fine_tuning_are_those_that_are_scored_on(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = story(tmp_path / "stories.csv", "id,title,story,cls")
    words = f"--dev {file} --text-column story --label-column cls --steps 60"
    scores = learn(tiny, "classification", file, tmp_path / "run", words)
    assert scores["scores"]["dev"]["accuracy"] > 90
    tuned = read_task_info(tmp_path / "run" / "model")
    assert tuned is not None
    assert tuned.layout == {"id": "id", "label": "cls", "text": "story"}
    capsys.readouterr()
    for more in ((), ("--label-column", "cls")):
        main(["evaluate", str(tmp_path / "run"), "--dev", str(file), "--json", *more])
        said = capsys.readouterr()
        assert json.loads(said.out)["splits"]["dev"]["scores"] == scores["scores"]["dev"]
        assert "text from 'story' (as in fine-tuning; " in said.err
        assert "was fine-tuned with" not in said.err


def test_a_file_with_other_columns_is_guessed_and_that_they_are_others_is_told(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = story(tmp_path / "stories.csv", "id,title,story,cls")
    learn(tiny, "classification", file, tmp_path / "run", "--text-column story --label-column cls --steps 1")
    other = story(tmp_path / "other.csv", "id,nr,tale,cls")
    other.write_text("\n".join(_without_titles(other.read_text().splitlines())) + "\n")
    capsys.readouterr()
    main(["evaluate", str(tmp_path / "run"), "--dev", str(other)])
    said = capsys.readouterr().err
    assert "the text is read from 'tale', but the model was fine-tuned with 'story'" in said
    assert "label from 'cls' (as in fine-tuning; " in said
    # Of two columns of texts it is not known which one is the story.
    both = story(tmp_path / "both.csv", "id,title,tale,cls")
    with pytest.raises(SystemExit):
        main(["evaluate", str(tmp_path / "run"), "--dev", str(both)])
    assert "2 columns have texts: 'title', 'tale'" in capsys.readouterr().err


def _without_titles(lines: list[str]) -> list[str]:
    """The second column numbered."""
    cells = [line.split(",") for line in lines]
    return [lines[0], *(",".join([row[0], str(number), *row[2:]]) for number, row in enumerate(cells[1:], 1))]


def test_the_sign_between_labels_is_that_of_fine_tuning(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tags.csv").write_text("text,tags\nthe good war,a/b\nthe old war,a\nthe time,\n")
    words = f"--steps 1 --dev {tmp_path / 'tags.csv'} --label-separator /"
    learn(tiny, "multi_label", tmp_path / "tags.csv", tmp_path / "run", words)
    tuned = read_task_info(tmp_path / "run" / "model")
    assert tuned is not None
    assert (tuned.separator, tuned.layout) == ("/", {"label": "tags", "text": "text"})
    capsys.readouterr()
    main(["evaluate", str(tmp_path / "run"), "--dev", str(tmp_path / "tags.csv")])
    assert "'/' separates labels in 'tags' (as in fine-tuning; " in capsys.readouterr().err
    (tmp_path / "other.csv").write_text('text,tags\nthe good war,"a, b"\nthe old war,a\n')
    main(["evaluate", str(tmp_path / "run"), "--dev", str(tmp_path / "other.csv")])
    assert "',' separates labels in 'tags' (guessed; " in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["multiple_choice", "question_answering", "multi_label", "regression"])
def test_every_kind_of_file_of_ones_own_keeps_its_columns(kind: str, tiny: Path, tmp_path: Path) -> None:
    named = {
        "multiple_choice": ({"stem": "what", "x1": "good", "x2": "war", "right": "0", "query": ""}, "--question-column "
                            "stem --options-columns x1 x2 --answer-column right"),
        "question_answering": ({"about": "the good war", "stem": "what", "found": "war", "query": ""},
                               "--passage-column about --question-column stem --answer-column found"),
        "multi_label": ({"said": "the good war", "what": "a;b", "text": ""}, "--text-column said --label-column what"),
        "regression": ({"said": "the good war", "much": 1, "text": ""}, "--text-column said --label-column much"),
    }  # fmt: skip
    row, words = named[kind]
    other = {"multi_label": {"what": "a"}, "regression": {"much": 2}}.get(kind, {})
    file = tmp_path / "rows.jsonl"
    first = next(iter(row))
    rows = [row, {**row, **other, first: f"{row[first]} old"}, {**row, **other, first: f"{row[first]} time"}] * 2
    file.write_text("".join(json.dumps(one) + "\n" for one in rows))
    learn(tiny, kind, file, tmp_path / "run", f"--steps 1 {words} --dev {file}")
    main(["evaluate", str(tmp_path / "run"), "--dev", str(file)])
    tuned = read_task_info(tmp_path / "run" / "model")
    assert tuned is not None
    assert set(tuned.layout.values()) == row.keys() - {"text", "query"}


def test_models_that_learned_from_other_columns_are_asked_together_only_of_columns_that_are_named(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text("id,body,category\n1,the good war,x\n2,the old war,y\n3,the time,x\n")
    (tmp_path / "b.csv").write_text("idx,text,label\n1,the good war,x\n2,the old war,y\n3,the time,x\n")
    both = tmp_path / "both.csv"
    both.write_text("text,label,body,category\nthe good war,x,the old war,y\nthe time,x,the house,x\n")
    runs = []
    for name in "ab":
        runs.append(str(tmp_path / name))
        learn(tiny, "classification", tmp_path / f"{name}.csv", tmp_path / name, f"--steps 1 --dev {both}")
    for first, second, columns in ((*runs, ("body", "text")), (*runs[::-1], ("text", "body"))):
        capsys.readouterr()
        with pytest.raises(SystemExit):
            main(["evaluate", first, second, "--dev", str(both)])
        said = capsys.readouterr().err
        assert f"{first} was trained with '{columns[0]}' as text, but {second} with '{columns[1]}'" in said
        assert "name the one to read with --label-column and --text-column" in said
    found = []
    for models in (runs, runs[::-1]):
        named = ["--text-column", "text", "--label-column", "label"]
        main(["evaluate", *models, "--dev", str(both), "--json", *named])
        found.append(json.loads(capsys.readouterr().out)["splits"])
    assert found[0] == found[1]


def test_a_model_that_does_not_say_how_answers_were_written_leaves_it_to_one_that_does(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, answers in {"one": (1, 2, 3), "zero": (0, 1, 2), "dev": (1, 2)}.items():
        rows = [
            {"question": f"what {n}", "options": ["good", "war", "old"], "answer": a} for n, a in enumerate(answers)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    dev = str(tmp_path / "dev.jsonl")
    for name in ("one", "zero"):
        learn(tiny, "multiple_choice", tmp_path / f"{name}.jsonl", tmp_path / name, f"--steps 1 --dev {dev}")
    older = shutil.copytree(tmp_path / "zero" / "model", tmp_path / "older")
    tuned = read_task_info(older)
    assert tuned is not None
    write_task_info(older, replace(tuned, answer_format=None))
    one, zero = str(tmp_path / "one"), str(tmp_path / "zero")
    for models in ((str(older), one), (one, str(older))):
        capsys.readouterr()
        main(["evaluate", *models, "--dev", dev])
        assert "answer format: number from 1, as in the model's training file" in capsys.readouterr().err
    main(["evaluate", one, zero, "--dev", dev])
    said = capsys.readouterr().err
    assert f"'number from 1' for {one}, 'number from 0' for {zero}; it is guessed from the file" in said
    assert "answer format: number from 0" in said
