"""The card of a pretrained model: no blanks, its commands run, and it says the same in both libraries."""

import contextlib
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub import ModelCard
from tests.pretraining.made_runs import make_run, metrics, run_info
from tests.pretraining.made_shards import made_shards

from openalbert.interop import huggingface
from openalbert.interop.names import family_of
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS, AlbertConfig, Sharing
from openalbert.model.presets import preset
from openalbert.objectives.sentence_order import SentenceOrder
from openalbert.pretraining.batches import Objective
from openalbert.pretraining.settings import Pretrain
from openalbert.report.pretrained_card import pretrained_card
from openalbert.text.shards import read_manifest, write_manifest
from openalbert.text.tokenizer import Tokenizer

transformers.logging.disable_progress_bar()
transformers.logging.set_verbosity_error()
MICRO = replace(preset("albert-micro"), vocab_size=300)


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
    # The card is written when all is recorded but the truth, which comes with the end.
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
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(block, "card", "exec"), names)
    return said.getvalue(), names


def test_the_snippets_run_as_they_stand_and_agree(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, run = micro_run(tmp_path / "mine")
    huggingface.save(model, run / "model", Tokenizer.load(shards / "tokenizer"), card=pretrained_card(model, run))
    monkeypatch.chdir(run / "model")
    ours, theirs = blocks((run / "model" / "README.md").read_text(encoding="utf-8"))
    said, names = executed(ours)
    pieces = names["scores"].topk(5).indices.tolist()
    assert said == f"{names['tokenizer'].pieces(pieces)}\n"
    said, names = executed(theirs)
    assert len(said.splitlines()) == 5
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


def test_nothing_is_blank_and_the_figures_are_those_of_the_run(tmp_path: Path) -> None:
    model, run = micro_run(tmp_path / "mine")
    card = pretrained_card(model, run)
    last = [line for line in metrics(40) if line["kind"] == "evaluation"][-1]
    for expected in (
        f"An ALBERT of {model.num_parameters():,} parameters (albert-micro), pretrained",
        "on masked LM and sentence order",
        f"| MLM loss | {last['mlm_loss']:.3f} | unigram plateau 6.970, chance 5.704 |",
        f"| SOP accuracy | {100 * last['sop_acc']:.1f} % | chance 50.0 % |",
        "| steps | 800 |",
        "| batch | 64 examples |",
        "| tokens seen | 52.4 M |",
        "| hardware | NVIDIA H200 |",
        "LAMB, learning rate 0.000220, weight decay 0.01",
        "43.8 M training tokens in 6,700 documents",
        "The licence of the texts is not recorded and so unknown",
        "It saw 52.4 M tokens; the paper's ALBERT-base saw 262 G, about 5,000 times as many.",
    ):
        assert expected in card
    for blank in ("None", "TODO", "| |\n|---|\n", "  \n", "nan", "{", "–"):
        assert blank not in re.sub(r"^model-index.*$|```.*?```", "", card, flags=re.MULTILINE | re.DOTALL), blank
    assert not re.search(r"\|\s*\|\n(?!\|---)", card)


def test_what_is_not_known_is_said_not_left_out(tmp_path: Path) -> None:
    model, run = micro_run(tmp_path / "mine")
    (run / "run_info.json").unlink()
    (run / "metrics.jsonl").unlink()
    card = pretrained_card(model, run)
    assert "Nothing was recorded of this run, so nothing is known of its quality." in card
    assert "| time | not recorded |" in card
    assert "Where they came from is not recorded." in card
    assert "| hardware | hardware that is not recorded |" in card
    assert "None" not in card


def test_a_licence_that_is_given_is_told(tmp_path: Path) -> None:
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
    assert "| begun with | weights drawn at random |" in pretrained_card(model, run)
    model, run = micro_run(tmp_path / "other", initialized_from="shallow")
    assert "| begun with | the weights of shallow |" in pretrained_card(model, run)
