"""Model cards: no blanks, the metrics of the run, their code runs, and both libraries give the same scores."""

import contextlib
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub import ModelCard
from tests.finetuning.made_lessons import KINDS, MADE_PRETRAINING, learn, lesson
from tests.pretraining.made_runs import make_run, metrics, run_info
from tests.pretraining.made_shards import made_shards

from openalbert.finetuning.evaluation.evaluate import open_for
from openalbert.finetuning.predict import load_models
from openalbert.interop import huggingface
from openalbert.interop.names import family_of
from openalbert.interop.pretraining_json import read_pretraining
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS, AlbertConfig, Sharing
from openalbert.model.presets import preset
from openalbert.objectives.sentence_order import SentenceOrder
from openalbert.pretraining.batches import Objective
from openalbert.pretraining.settings import Pretrain
from openalbert.report.model_card import finetuned_card, pretrained_card
from openalbert.report.run_reader import read_finetuning_runs
from openalbert.tasks.registry import TaskSource
from openalbert.tasks.task import Task
from openalbert.text.shards import read_manifest, write_manifest
from openalbert.text.tokenizer import Tokenizer

transformers.logging.disable_progress_bar()
transformers.logging.set_verbosity_error()
MICRO = replace(preset("albert-micro"), vocab_size=300)
ALL = [*KINDS, "some_without_answer"]
# What transformers says of every SentencePiece tokenizer where it joins pieces to words.
pytestmark = pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")


def micro_run(folder: Path, config: AlbertConfig = MICRO, order: bool = True, **known: Any) -> tuple[AlbertModel, Path]:
    sentence_order = SentenceOrder(objective="sop" if order else "none")
    settings = Pretrain(
        preset="albert-micro",
        model=config,
        out=folder,
        steps=800,
        batch_size=64,
        objective=Objective(max_length=128, sentence_order=sentence_order),
    )
    lines = metrics(40, order=order)
    # The card is written before the actual time and memory, which come last.
    run = make_run(folder, settings, lines, run_info(parameters=1, vocab_size=300, **known))
    torch.manual_seed(0)
    return AlbertModel(config, PRETRAINING_HEADS if order else PRETRAINING_HEADS[:1]).eval(), run


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_shards(tmp_path_factory.mktemp("text"))


def blocks(card: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", card, flags=re.MULTILINE | re.DOTALL)


def executed(block: str) -> tuple[str, dict[str, Any]]:
    """Run a block as it stands; what it printed and the names it left."""
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(block, "card", "exec"), names)
    return printed.getvalue(), names


def test_the_snippets_run_as_they_stand_and_agree(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, run = micro_run(tmp_path / "mine")
    huggingface.save(model, run / "model", Tokenizer.load(shards / "tokenizer"), card=pretrained_card(model, run))
    monkeypatch.chdir(run / "model")
    ours, theirs = blocks((run / "model" / "README.md").read_text(encoding="utf-8"))
    printed, names = executed(ours)
    assert printed.startswith("FillPrediction(")
    [guesses] = names["model"].fill("the old man went to the [MASK] and slept.").masks
    pieces = [guess.id for guess in guesses]
    printed, names = executed(theirs)
    assert len(printed.splitlines()) == 5
    answers = names["fill"](f"the old man went to the {names['fill'].tokenizer.mask_token} and slept.")
    assert [answer["token"] for answer in answers] == pieces


def test_the_hub_reads_the_front_matter(tmp_path: Path) -> None:
    name = 'odd: "name" #1'
    model, run = micro_run(tmp_path / name)
    data = ModelCard(pretrained_card(model, run)).data.to_dict()
    assert data["library_name"] == "transformers"
    assert data["pipeline_tag"] == "fill-mask"
    assert data["license"] == "unknown"
    assert data["model-index"][0]["name"] == name
    last = [line for line in metrics(40) if line["kind"] == "evaluation"][-1]
    values = {metric["name"]: metric["value"] for metric in data["model-index"][0]["results"][0]["metrics"]}
    assert values["MLM accuracy"] == last["mlm_acc"]
    assert values["perplexity"] == pytest.approx(last["perplexity"])
    assert values["SOP accuracy"] == last["sop_acc"]


def test_nothing_is_blank_and_the_metrics_are_those_of_the_run(tmp_path: Path) -> None:
    model, run = micro_run(tmp_path / "mine")
    card = pretrained_card(model, run)
    last = [line for line in metrics(40) if line["kind"] == "evaluation"][-1]
    for expected in (
        f"An ALBERT of {model.num_parameters():,} parameters (albert-micro), pretrained",
        "on masked LM and sentence order",
        f"| MLM loss | {last['mlm_loss']:.3f} | 6.970 | 5.704 |",
        f"| SOP accuracy | {100 * last['sop_acc']:.1f} % |  | 50.0 % |",
        "| steps | 800 |",
        "| batch size | 64 examples |",
        "| tokens seen | 52.4 M |",
        "| hardware | NVIDIA H200 |",
        "LAMB, learning rate 0.000220, weight decay 0.01",
        "43.8 M training tokens in 6,700 documents",
        "The licence of the texts is unknown",
        "It saw 52.4 M tokens; the paper's ALBERT-base saw 262 G, about 5,000 times as many.",
    ):
        assert expected in card
    for blank in ("None", "TODO", "| |\n|---|\n", "  \n", "nan", "{", "–"):
        assert blank not in re.sub(r"^model-index.*$|```.*?```", "", card, flags=re.MULTILINE | re.DOTALL), blank
    assert not re.search(r"\|\s*\|\n(?!\|---)", card)


def test_what_is_not_known_is_called_unknown(tmp_path: Path) -> None:
    model, run = micro_run(tmp_path / "mine")
    (run / "run_info.json").unlink()
    (run / "metrics.jsonl").unlink()
    card = pretrained_card(model, run)
    assert "The run has no metrics, so the quality of the model is unknown." in card
    assert "| time | unknown |" in card
    assert "The origin of the texts is unknown." in card
    assert "| hardware | unknown hardware |" in card
    assert "None" not in card


def test_a_given_licence_is_on_the_card(tmp_path: Path) -> None:
    model, run = micro_run(tmp_path / "mine")
    assert "Licence of the texts: CC BY-SA 3.0." in pretrained_card(model, run, data_licence="CC BY-SA 3.0")


def test_a_run_without_a_sentence_objective_does_not_claim_one(tmp_path: Path) -> None:
    model, run = micro_run(tmp_path / "mine", order=False)
    card = pretrained_card(model, run)
    assert "sentence-order" not in card
    assert "| objective | masked LM |" in card


def test_a_model_that_transformers_cannot_express_offers_no_snippet_for_it(tmp_path: Path) -> None:
    config = replace(MICRO, sharing=Sharing(attention=1, ffn=2))
    assert family_of(config) is None
    model, run = micro_run(tmp_path / "mine", config)
    card = pretrained_card(model, run)
    assert len(blocks(card)) == 1
    assert "cannot express this model" in card
    assert "library_name: openalbert" in card


def test_the_texts_are_named_as_the_shards_know_them(shards: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    inputs = tuple(f"/somewhere/private/part|{n}.txt.xz" for n in range(10))
    write_manifest(folder, replace(read_manifest(shards), inputs=inputs))
    model, run = micro_run(tmp_path / "mine", data={**run_info()["data"], "folder": str(folder)})
    card = pretrained_card(model, run)
    assert "The texts came from 10 files: `part|0.txt.xz`, `part|1.txt.xz`" in card
    assert "`part|7.txt.xz` and 2 more." in card
    assert "private" not in card


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    model, run = micro_run(tmp_path / "a|b <script>", device="GPU | `x`\n# heading")
    card = pretrained_card(model, run)
    assert "# a\\|b \\<script\\>" in card
    assert "| hardware | GPU \\| \\`x\\` \\# heading |" in card


def test_weights_taken_over_are_not_called_random(tmp_path: Path) -> None:
    model, run = micro_run(tmp_path / "mine", initialized_from="")
    assert "| initialized from | weights drawn at random |" in pretrained_card(model, run)
    model, run = micro_run(tmp_path / "other", initialized_from="shallow")
    assert "| initialized from | shallow |" in pretrained_card(model, run)


def task_of(run: Path) -> Task:
    [file] = (run.parent / "data").iterdir()
    return open_for(load_models([str(run)]), "", TaskSource(train=file))


@pytest.mark.parametrize("kind", ALL)
def test_the_card_in_the_model_folder_has_the_scores_of_its_run(kind: str, quick_runs: dict[str, Path]) -> None:
    run = quick_runs[kind]
    card = (run / "model" / "README.md").read_text(encoding="utf-8")
    scores = json.loads((run / "scores.json").read_text())["scores"]["dev"]
    for value in scores.values():
        assert f" {value:.2f} " in card
    results = ModelCard(card).data.eval_results or []
    assert sorted(one.metric_value for one in results) == sorted(scores.values())
    assert {one.dataset_split for one in results} == {"dev"}
    prose = re.sub(r"^```.*?^```$", "", card.split("---", 2)[2], flags=re.MULTILINE | re.DOTALL)
    for blank in ("None", "nan", "{", "|  |", "not recorded", "?"):
        assert blank not in prose
    settings = json.loads((run / "run.json").read_text())
    assert f"| seed | {settings['seed']} |" in card
    assert "| initialized from | `" in card
    assert "Before fine-tuning it was pretrained on 1.65 G tokens (0.6 % of the paper's 262 G)." in card
    assert read_pretraining(run / "model") == MADE_PRETRAINING
    # The recipes' inputs are longer than this model takes, and what it never read is not claimed.
    assert settings["max_length"] > 64
    assert "at most 64 tokens each" in card
    assert "It reads inputs of at most 64 tokens" in card


@pytest.mark.parametrize("kind", ALL)
def test_the_code_of_the_card_runs_in_the_model_folder(
    kind: str, quick_runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(quick_runs[kind] / "model")
    [code] = blocks(Path("README.md").read_text(encoding="utf-8"))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, "card", "exec"), {})
    assert printed.getvalue().strip() or kind in ("question_answering", "some_without_answer")
    if kind in ("classification", "multi_label"):
        assert all(f"'label': '{label}'" in printed.getvalue() for label in task_of(quick_runs[kind]).labels)


@pytest.mark.parametrize("kind", ALL)
def test_the_code_of_the_card_takes_texts_that_are_longer_than_the_model_reads(
    kind: str, quick_runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(quick_runs[kind] / "model")
    [code] = blocks(Path("README.md").read_text(encoding="utf-8"))
    longer = code.replace('"a text"', '"a text " * 500').replace("sat on the mat.", "sat on the mat. " * 100)
    assert longer != code
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(longer, "card", "exec"), {})


@pytest.mark.parametrize("of_pairs", [True, False])
def test_pairs_that_are_longer_than_the_model_reads_are_taken_too(
    of_pairs: bool, quick_runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = quick_runs["regression"]
    monkeypatch.chdir(run / "model")
    [code] = blocks(finetuned_card(huggingface.load(run / "model"), task_of(run), run, {}, of_pairs=of_pairs))
    longer = re.sub(r'"(a text|the first text|the second)"', r'"\1 " * 500', code)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(longer, "card", "exec"), {})
    assert "'score': " in printed.getvalue()


@pytest.mark.parametrize(
    ("words", "is_noted"), [("--patience 5", True), ("--patience None", True), ("--keep last", False)]
)
def test_a_score_that_is_the_best_of_several_is_called_a_little_high(
    words: str, is_noted: bool, tiny: Path, tmp_path: Path
) -> None:
    file = lesson("classification", tmp_path, num_examples=60)
    learn(tiny, "classification", file, tmp_path / "run", f"--steps 4 --evaluate-every 2 {words}")
    card = (tmp_path / "run" / "model" / "README.md").read_text(encoding="utf-8")
    assert ("so its score is a little high" in card) == is_noted
    learn(tiny, "classification", file, tmp_path / "once", "--steps 2 --evaluate-every 2")
    assert "a little high" not in (tmp_path / "once" / "model" / "README.md").read_text(encoding="utf-8")


def test_transformers_and_openalbert_give_the_same_scores(quick_runs: dict[str, Path]) -> None:
    folder = quick_runs["classification"] / "model"
    classify = transformers.pipeline("text-classification", model=str(folder), top_k=None, device="cpu")
    theirs = {found["label"]: found["score"] for found in classify(["the good old time"])[0]}
    model, tokenizer = huggingface.load(folder), Tokenizer.load(folder)
    ids = torch.tensor([[tokenizer.cls_id, *tokenizer.encode("the good old time"), tokenizer.sep_id]])
    with torch.no_grad():
        ours = model.scores("classification", model.encode(ids)).softmax(1)[0].tolist()
    assert theirs == pytest.approx(dict(zip(model.head_list[0].labels, ours, strict=True)), abs=1e-5)


def test_a_collapsed_run_is_named_as_one_and_a_known_task_is_compared_with_the_paper(
    quick_runs: dict[str, Path], tmp_path: Path
) -> None:
    run = Path(shutil.copytree(quick_runs["classification"], tmp_path / "all" / "seed-3"))
    task = replace(task_of(quick_runs["classification"]), name="sst2", labels=("a|b", "c`d"))
    model = huggingface.load(run / "model")
    card = finetuned_card(model, task, run, {"dev": {"accuracy": 50.0}}, collapsed="all predictions are 'a|b'")
    assert "**This run collapsed, and its scores are no result:** all predictions are 'a\\|b'." in card
    assert "| the paper's albert-base | 90.30 |" in card
    assert "the official dev set of 872 examples; dev of 12 examples is not that one, so its scores are not" in card
    assert "# all, seed-3" in card
    assert "`a|b`, `c d`" in card
    assert read_finetuning_runs([run])[0].name == "seed-3"


@pytest.mark.parametrize(("of_pairs", "shown"), [(True, '"text_pair": "the second"'), (False, 'classify("a text")')])
def test_the_card_asks_for_a_pair_only_where_the_task_has_pairs(
    of_pairs: bool, shown: str, quick_runs: dict[str, Path]
) -> None:
    run = quick_runs["classification"]
    [code] = blocks(finetuned_card(huggingface.load(run / "model"), task_of(run), run, {}, of_pairs=of_pairs))
    assert shown in code


def test_the_quality_of_what_was_never_evaluated_is_called_unknown(quick_runs: dict[str, Path]) -> None:
    run = quick_runs["regression"]
    card = finetuned_card(huggingface.load(run / "model"), task_of(run), run, {})
    assert "It was not evaluated, so its quality is unknown." in card
    assert ModelCard(card).data.eval_results is None


def test_many_classes_are_named_in_part_and_counted(quick_runs: dict[str, Path]) -> None:
    run = quick_runs["classification"]
    task = replace(task_of(run), labels=tuple(f"{number} stars" for number in range(20)))
    card = finetuned_card(huggingface.load(run / "model"), task, run, {})
    assert "Its 20 classes, in the order of its outputs: `0 stars`, `1 stars`, " in card
    assert "`11 stars` and 8 more, see config.json." in card


def test_a_model_without_a_run_has_a_plain_card(tmp_path: Path) -> None:
    model = AlbertModel(MICRO)
    huggingface.save(model, tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert f"| parameters | {model.num_parameters():,} |" in card
    assert 'AutoModel.from_pretrained("this folder")' in card
    assert ModelCard(card).data.library_name == "openalbert"
    other = AlbertModel(replace(MICRO, sharing=Sharing(attention=1, ffn=2)))
    assert huggingface.NOT_IN_TRANSFORMERS in huggingface.plain_card(other)
