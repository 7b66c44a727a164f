"""Every way to write a model folder, held to one contract: Hugging Face's tokenizer takes what the model takes."""

import json
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from tests.finetuning.made_lessons import command, lesson, made_model
from tests.interop.bundle_writer import write_bundle
from tests.interop.folder_contract import check_tokenizer_takes_what_the_model_takes
from tests.pretraining.made_shards import easy_text, made_shards
from tests.pretraining.micro_runs import micro_run

from openalbert import cli
from openalbert.interop import huggingface
from openalbert.interop.task_json import read_task_info
from openalbert.interop.tokenizer_json import write_tokenizer_files
from openalbert.model.albert import AlbertModel
from openalbert.model.config import Sharing
from openalbert.model.presets import preset
from openalbert.pretrained import bundled_folder, pretrained_names
from openalbert.text.tokenizer import Tokenizer

GOLDEN = Path(__file__).parents[1] / "golden" / "google"


def saved(folder: Path, tokenizer: Tokenizer) -> list[Path]:
    return [made_model(folder / "model", tokenizer)]


def saved_with_a_sharing_that_hugging_face_cannot_express(folder: Path, tokenizer: Tokenizer) -> list[Path]:
    torch.manual_seed(0)
    config = replace(preset("albert-micro"), vocab_size=tokenizer.vocab_size, num_layers=2, sharing=Sharing(1, 2))
    huggingface.save(AlbertModel(config), folder / "model", tokenizer)
    return [folder / "model"]


def pretrained_on_short_inputs_and_with_more_positions(folder: Path, _: Tokenizer) -> list[Path]:
    shards = made_shards(folder, easy_text(40))
    first = micro_run(shards, folder / "first", "--steps 1 --objective.max-length 16")
    words = f"--steps 1 --objective.max-length 24 --model.max-positions 200 --warm-start {first}"
    longer = micro_run(shards, folder / "longer", words)
    return [first / "model", longer / "model"]


def fine_tuned_on_short_inputs(folder: Path, tokenizer: Tokenizer) -> list[Path]:
    start = made_model(folder / "start", tokenizer)
    file = lesson("classification", folder / "data", 40)
    for out, words in (("run", ""), ("seeds", "--seeds 2 --retries 0")):
        cli.main(command(start, "classification", file, folder / out, f"--steps 2 --max-length 24 {words}"))
    tuned = [folder / "run" / "model", folder / "seeds" / "model", folder / "seeds" / "seed-1" / "model"]
    for model in tuned:  # what the task was cut to has a place of its own
        told = read_task_info(model)
        assert told is not None
        assert told.max_length == 24
    cli.main(["convert", str(tuned[0]), "--out", str(folder / "converted"), "--precision", "bfloat16"])
    return [*tuned, folder / "converted"]


def converted_from_hugging_face(folder: Path, tokenizer: Tokenizer) -> list[Path]:
    """A folder whose own tokenizer cuts at 20 tokens, as many on the hub do."""
    config = transformers.AlbertConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=32, embedding_size=16, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=96,
    )  # fmt: skip
    theirs = transformers.AlbertForPreTraining(config)
    theirs.save_pretrained(folder / "theirs")
    write_tokenizer_files(tokenizer, folder / "theirs", 20)
    cli.main(["convert", str(folder / "theirs"), "--out", str(folder / "ours")])
    return [folder / "ours"]


def converted_from_google(folder: Path, tokenizer: Tokenizer) -> list[Path]:
    make = runpy.run_path(str(GOLDEN / "make.py"))
    config = make["ALBERT"] | {"vocab_size": tokenizer.vocab_size}
    google = folder / "google"
    google.mkdir()
    shapes = make["albert_encoder"](config)
    write_bundle(google / make["PREFIX"], {name: make["values"](name, shape) for name, shape in shapes.items()})
    (google / "albert_config.json").write_text(json.dumps(config))
    (google / "30k-clean.model").write_bytes(tokenizer.model)
    cli.main(["convert", str(google), "--out", str(folder / "ours")])
    return [folder / "ours"]


@pytest.mark.parametrize(
    "write",
    [
        saved,
        saved_with_a_sharing_that_hugging_face_cannot_express,
        pretrained_on_short_inputs_and_with_more_positions,
        fine_tuned_on_short_inputs,
        converted_from_hugging_face,
        converted_from_google,
    ],
)
def test_the_tokenizer_of_every_folder_that_is_written_takes_as_many_tokens_as_the_model(
    write: Callable[[Path, Tokenizer], list[Path]], tmp_path: Path, small: Tokenizer
) -> None:
    for folder in write(tmp_path, small):
        check_tokenizer_takes_what_the_model_takes(folder)


@pytest.mark.parametrize("name", pretrained_names())
def test_the_tokenizer_of_every_bundled_checkpoint_takes_as_many_tokens_as_the_model(name: str, tmp_path: Path) -> None:
    folder = bundled_folder(name)
    assert folder is not None
    check_tokenizer_takes_what_the_model_takes(folder)
    # And its files are those that would be written today.
    write_tokenizer_files(Tokenizer.load(folder), tmp_path, huggingface.read_folder_config(folder).max_positions)
    for file in ("tokenizer.json", "tokenizer_config.json", "spiece.model", "normalization.json"):
        assert (folder / file).read_bytes() == (tmp_path / file).read_bytes(), file
