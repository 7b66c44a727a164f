"""Tagging from end to end: a run on CoNLL files and on spans, its files of predictions, its page, and transformers."""

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import transformers
from tests.finetuning.made_lessons import learn, lesson
from tests.report.parsed_page import Page

import openalbert
from openalbert.cli import main
from openalbert.finetuning.collapse_detection import describe_constant_predictions
from openalbert.finetuning.data import encode_split
from openalbert.finetuning.evaluation.error_analysis import analyze_errors
from openalbert.finetuning.evaluation.intervals import intervals
from openalbert.finetuning.evaluation.split import evaluate_outputs
from openalbert.finetuning.predict import Outputs
from openalbert.finetuning.word_alignment import NO_TOKEN
from openalbert.interop import huggingface
from openalbert.model.config import Head
from openalbert.report.error_analysis import Mark, Shown, marked, read_error_analyses
from openalbert.tasks.data.conll import read_conll
from openalbert.tasks.registry import TaskSource, open_task
from openalbert.tasks.tags import count_matches, tag_scores
from openalbert.tasks.task import TaggingExample
from openalbert.text.tokenizer import Tokenizer

transformers.logging.disable_progress_bar()


@pytest.fixture(scope="module")
def run(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned its lesson well."""
    folder = tmp_path_factory.mktemp("tagging")
    file = lesson("tagging", folder / "data")
    learn(tiny, "tagging", file, folder / "run", "--steps 200 --evaluate-every 50")
    return folder / "run"


def test_predictions_are_written_as_characters_and_as_a_column_that_scores_the_same(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dev = lesson("tagging", tmp_path, 60, seed=5)
    main(["evaluate", str(run), "--dev", str(dev), "--predictions", str(tmp_path / "out"), "--json"])
    scores = json.loads(capsys.readouterr().out)["splits"]["dev"]["scores"]
    assert scores["f1"] > 80
    rows = read_conll(tmp_path / "out" / "tagging.dev.conll").rows
    counts = count_matches([row.values["2"] for row in rows], [row.values["3"] for row in rows])
    assert {name: float(value) for name, value in tag_scores(counts.sum(0), True).items()} == pytest.approx(scores)
    found = [json.loads(line) for line in (tmp_path / "out" / "tagging.dev.jsonl").read_text().splitlines()]
    assert [line["text"] for line in found] == [" ".join(row.values["1"]) for row in rows]
    entities = [entity for line in found for entity in line["prediction"]]
    assert len(entities) == counts.sum(0)[2]
    assert {entity["text"] for entity in entities if entity["label"] == "place"} == {"water", "school"}


def test_a_file_of_spans_is_learned_and_scores_as_the_same_file_of_columns(
    tiny: Path, run: Path, tmp_path: Path
) -> None:
    columns = lesson("tagging", tmp_path, 80, seed=6)
    task = open_task("tagging", TaskSource(train=columns))
    lines = []
    for example in (*task.read("train").examples, *task.read("dev").examples):
        assert isinstance(example, TaggingExample)
        spans = [
            {"start": example.words[first][0], "end": example.words[end - 1][1], "label": label}
            for first, end, label in openalbert.tasks.tags.find_entities(example.tags or ())
        ]
        lines.append(json.dumps({"text": example.text, "spans": spans}) + "\n")
    (tmp_path / "spans.jsonl").write_text("".join(lines))
    scores = [openalbert.evaluate(run, dev=file) for file in (columns, tmp_path / "spans.jsonl")]
    assert scores[0]["dev"] == pytest.approx(scores[1]["dev"])
    learned = learn(tiny, "tagging", tmp_path / "spans.jsonl", tmp_path / "run", "--steps 20")
    assert learned["scores"]["dev"]["f1"] > 0


def test_parts_of_speech_are_learned_and_each_word_is_scored(tiny: Path, tmp_path: Path) -> None:
    file = lesson("tagging", tmp_path, 200)
    names = {"O": "NOUN", "B-place": "VERB", "B-thing": "DET", "I-thing": "NOUN"}
    for tag, name in names.items():
        file.write_text(file.read_text().replace(f"\t{tag}\n", f"\t{name}\n"))
    scores = learn(tiny, "tagging", file, tmp_path / "run", "--steps 60 --evaluate-every 30")
    assert scores["main_metric"] == "accuracy"
    assert scores["scores"]["dev"]["accuracy"] > 95
    model = openalbert.load(tmp_path / "run")
    found = model.predict("key of water")
    assert found.tags == ("DET", "NOUN", "VERB")
    assert found.entities is None
    [analysis] = read_error_analyses(tmp_path / "run")
    assert (analysis.grouped_by, {group.name for group in analysis.groups}) == ("tag", {"NOUN", "VERB", "DET"})


def test_a_predictor_finds_entities_in_texts_and_in_lists_of_words(run: Path) -> None:
    model = openalbert.load(run)
    text = "People of the  WATER, key time."
    found = model.predict(text)
    assert [(one.text, one.label) for one in found.entities] == [("WATER", "place"), ("key time", "thing")]
    for one in found.entities:
        assert text[one.start : one.end] == one.text
        assert 0.5 < one.probability <= 1
    of_words, of_text = model.predict([["the", "WATER"], "the WATER"])
    assert of_words.tags == of_text.tags == ("O", "B-place")
    assert found.cells()["prediction"][0].keys() == {"text", "label", "start", "end", "probability"}
    long = model.predict(f"{text} " * 30)  # far longer than the model reads at once
    assert {tag for word, tag in zip(long.words, long.tags, strict=True) if word == "WATER"} == {"B-place"}
    assert len(long.words) == 8 * 30


def test_predict_adds_a_column_to_a_conll_file_and_keeps_all_else(run: Path, tmp_path: Path) -> None:
    text = "# id 1\r\nthe\tDT\r\nwater\tNN\r\n\r\n\r\nkey\tNN\r\nbroken\r\n\r\n-DOCSTART-\tX\r\nschool\tNN"
    (tmp_path / "a.conll").write_bytes(text.encode())
    main(["predict", str(run), str(tmp_path / "a.conll"), "--out", str(tmp_path / "b.conll")])
    expected = text.replace("the\tDT", "the\tDT\tO").replace("water\tNN", "water\tNN\tB-place")
    expected = expected.replace("school\tNN", "school\tNN\tB-place")
    assert (tmp_path / "b.conll").read_bytes().decode() == expected
    with pytest.raises(SystemExit):
        main(["predict", str(run), str(tmp_path / "a.conll"), "--out", str(tmp_path / "b.jsonl")])


def test_predict_gives_the_entities_of_typed_texts_and_of_tables(
    run: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    main(["predict", str(run), "the water", "of\tpeople"])
    first, second = map(json.loads, capfdbinary.readouterr().out.splitlines())
    assert first["prediction"] == [
        {"text": "water", "label": "place", "start": 4, "end": 9, "probability": first["prediction"][0]["probability"]}
    ]
    assert (second["text"], second["prediction"]) == ("of\tpeople", [])
    (tmp_path / "a.csv").write_text("id,text\n7,the school\n8,\n")
    main(["predict", str(run), str(tmp_path / "a.csv")])
    out = capfdbinary.readouterr()
    [school, empty] = list(csv.DictReader(out.out.decode().splitlines()))
    assert json.loads(school["prediction"])[0]["text"] == "school"
    assert (empty["id"], empty["prediction"]) == ("8", "")
    assert b"1 row without a text" in out.err
    (tmp_path / "a.jsonl").write_text(json.dumps({"tokens": ["key", "time"]}) + "\n")
    main(["predict", str(run), str(tmp_path / "a.jsonl")])
    [line] = map(json.loads, capfdbinary.readouterr().out.splitlines())
    assert line["prediction"][0]["text"] == "key time"


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
def test_the_folder_works_in_transformers_pipeline_as_it_is(run: Path) -> None:
    find = transformers.pipeline("ner", model=str(run / "model"), aggregation_strategy="first", device="cpu")
    ours = openalbert.load(run)
    for text in ("people of the water in the key time", "school", "the time of people"):
        # Their offsets of a word include the space before it, as those of every ALBERT there.
        theirs = [(one["entity_group"], text[one["start"] : one["end"]], one["end"]) for one in find(text)]
        assert theirs == [(one.label, one.text, one.end) for one in ours.predict(text).entities]
    assert find("the school")[0]["score"] == pytest.approx(ours.predict("the school").entities[0].probability, rel=1e-4)


def test_a_token_classification_model_of_transformers_loads_and_is_scored(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = transformers.AlbertForTokenClassification.from_pretrained(run / "model")
    theirs.save_pretrained(tmp_path / "theirs")
    for name in ("spiece.model", "normalization.json"):
        shutil.copy(run / "model" / name, tmp_path / "theirs")
    with pytest.warns(openalbert.errors.InputWarning, match="has no pooler"):
        model = huggingface.load(tmp_path / "theirs")
    assert model.head_list == huggingface.load(run / "model").head_list
    assert model.head_list[0].kind == "tagging"
    file = str(run.parent / "data" / "words.conll")
    scores = []
    for folder in (run, tmp_path / "theirs"):
        main(["evaluate", str(folder), "--task", "tagging", "--dev", file, "--json"])
        scores.append(json.loads(capsys.readouterr().out)["splits"]["dev"]["scores"])
    assert scores[0] == scores[1]


def test_the_page_marks_actual_and_predicted_entities_by_more_than_colour(
    quick_runs: dict[str, Path], tmp_path: Path
) -> None:
    [file] = (quick_runs["tagging"].parent / "data").iterdir()
    main(["evaluate", str(quick_runs["tagging"]), "--dev", str(file), "--report", str(tmp_path / "page.html")])
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    page = Page(html)
    assert "By type" in page.text
    assert re.search(r"type entities precision recall f1 place \d+ ", page.text)
    assert "Worst mistakes" in page.text
    assert "actual only" in page.text
    assert 'class="tag gold"' in html or 'class="tag predicted"' in html


def test_published_predictions_keep_their_score_on_the_way_through_pieces_and_windows(real_data: Path) -> None:
    """The system's tags as logits of first pieces, with an input so short that many texts have several windows."""
    folder = real_data / "ner"
    task = open_task("tagging", TaskSource(train=folder / "train.conll", dev=folder / "test.conll"))
    data = encode_split(task, "dev", task.read("dev"), Tokenizer.load("albert-base-wikibooks"), max_length=32)
    assert len(data.encoding.sequences.example) > len(data.examples) + 200
    tags = [tag for row in read_conll(folder / "published" / "uh_ritual.conll").rows for tag in row.values["2"]]
    logits = np.zeros((len(data.encoding.sequences.ids), len(task.labels)), np.float32)
    assert data.encoding.words is not None
    for token, tag in zip(data.encoding.words.token, tags, strict=True):
        if token != NO_TOKEN:
            logits[token, task.labels.index(tag)] = 5
    found = evaluate_outputs(task, data, Outputs({"tagging": logits}))
    assert {name: round(found.metrics[name], 2) for name in ("precision", "recall", "f1")} == {
        "precision": 57.54,
        "recall": 32.90,
        "f1": 41.86,
    }
    [person] = [group for group in analyze_errors(found).groups if group.name == "person"]
    assert person.num_examples == 429


def test_an_entity_that_is_right_is_labelled_once_and_a_wrong_one_twice() -> None:
    right = marked(Shown("text", "in Paris", (Mark("gold", 3, 8, "LOC"), Mark("predicted", 3, 8, "LOC"))))
    assert right.count("LOC") == 1
    wrong = marked(Shown("text", "in Paris", (Mark("gold", 3, 8, "LOC"), Mark("predicted", 3, 8, "PER"))))
    assert wrong.index("LOC") < wrong.index("PER")
    assert "<mark" not in marked(Shown("text", "in Paris"))


def test_a_model_that_finds_nothing_is_said_to_have_learned_nothing(tmp_path: Path) -> None:
    file = lesson("tagging", tmp_path, 20)
    task = open_task("tagging", TaskSource(train=file))
    examples = task.read("train").examples
    nothing = [("O",) * len(example.words) for example in examples if isinstance(example, TaggingExample)]
    assert describe_constant_predictions(task, examples, nothing) == "every word is predicted as 'O'"
    right = [example.tags for example in examples if isinstance(example, TaggingExample)]
    assert describe_constant_predictions(task, examples, right) is None
    assert task.measure(examples, nothing)["f1"] == 0


def test_intervals_are_those_of_resampled_texts(tmp_path: Path) -> None:
    """Also of accuracy: words of one text are not independent, so Wilson's interval would be too short."""
    task = open_task("tagging", TaskSource(train=lesson("tagging", tmp_path, 60)))
    examples = task.read("train").examples
    predictions = []
    for number, example in enumerate(examples):
        assert isinstance(example, TaggingExample)
        predictions.append(example.tags if number % 3 else ("O",) * len(example.words))
    metrics = task.measure(examples, predictions)
    found = intervals(task, examples, predictions, metrics)
    assert found.keys() == {"f1", "recall", "accuracy"}  # every predicted entity is right, in all resamples
    for name, (low, high) in found.items():
        assert low < metrics[name] < high


def test_a_head_without_labels_is_refused() -> None:
    with pytest.raises(openalbert.UserError, match="a tagging head needs the names of its classes"):
        Head("tagging")


def test_the_bundled_vocabulary_reads_cased_words_as_lower_case() -> None:
    """The guide says so: it is a limit for entities."""
    tokenizer = Tokenizer.load("albert-base-wikibooks")
    assert tokenizer.encode("Apple") == tokenizer.encode("apple")
