"""The verb `convert`: every tensor accounted for, whatever the source, and nothing left behind by a failure."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from tests.text.varied_lines import trained_tokenizer

from openalbert.cli import main
from openalbert.errors import UserError
from openalbert.interop import huggingface
from openalbert.interop.convert import (
    ClassifierKind,
    Convert,
    Difference,
    classifier_values,
    compare_with_transformers,
    convert,
)
from openalbert.interop.task_json import read_task_info
from openalbert.model.albert import AlbertModel
from openalbert.model.config import Head
from openalbert.model.presets import preset
from openalbert.text.tokenizer import Tokenizer

GOLDEN = Path(__file__).parents[1] / "golden" / "google"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return trained_tokenizer(tmp_path_factory.mktemp("vocabulary"), vocab_size=300)


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        ("pretraining", ("masked_lm", "sentence_order")),
        ("hub", ("masked_lm", "sentence_order")),
        ("groups", ("masked_lm", "sentence_order")),
        ("classifier", ("classification",)),
        ("squad", ("span",)),
        ("bert", ("masked_lm", "sentence_order")),
    ],
)
def test_googles_checkpoints_become_model_folders_with_every_tensor_accounted_for(
    name: str, heads: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    convert(Convert(str(GOLDEN / name), tmp_path / "model"))
    printed = " ".join(capsys.readouterr().out.split())
    assert "left over 0" in printed
    assert "drawn at random 0" in printed
    assert "every parameter as written" in printed
    assert "largest difference from transformers" in printed
    model = huggingface.load(tmp_path / "model")
    assert tuple(model.heads) == heads
    transformers.AutoModel.from_pretrained(tmp_path / "model")


@pytest.mark.parametrize("name", ["pretraining", "groups"])
def test_a_converted_checkpoint_computes_what_tensorflow_computed(name: str, tmp_path: Path) -> None:
    """outputs.json holds the forward passes of these checkpoints, made once with real TensorFlow."""
    golden = json.loads((GOLDEN / "outputs.json").read_text())
    convert(Convert(str(GOLDEN / name / "model.ckpt-best"), tmp_path / "model"))
    model = huggingface.load(tmp_path / "model")
    ids, segments, mask = (torch.tensor(golden[key]) for key in ("ids", "segments", "mask"))
    with torch.no_grad():
        encoded = model.encode(ids, segments, mask, all_states=True)
    outputs = {
        "hidden": torch.stack(encoded.states),
        "pooled": encoded.pooled,
        "masked_lm": model.scores("masked_lm", encoded),
        "sentence_order": model.scores("sentence_order", encoded),
    }
    for key, ours in outputs.items():
        theirs = torch.tensor(golden[name][key])
        if key in ("hidden", "masked_lm"):  # what stands in the padding is nobody's business
            ours, theirs = ours[..., mask.bool(), :], theirs[..., mask.bool(), :]
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_a_folder_of_transformers_converts_and_can_be_stored_in_bf16(tmp_path: Path) -> None:
    config = transformers.AlbertConfig(
        vocab_size=100, hidden_size=32, embedding_size=16, num_attention_heads=2, intermediate_size=64, num_labels=3
    )
    transformers.AlbertForSequenceClassification(config).save_pretrained(tmp_path / "theirs")
    main(["convert", str(tmp_path / "theirs"), "--out", str(tmp_path / "ours"), "--precision", "bfloat16"])
    ours = huggingface.load(tmp_path / "ours")
    assert ours.head_list == (Head("classification", ("LABEL_0", "LABEL_1", "LABEL_2")),)
    assert (tmp_path / "ours" / "model.safetensors").stat().st_size < 0.6 * 4 * ours.num_parameters() + 10_000


def test_a_trained_model_differs_from_transformers_by_rounding_alone(tmp_path: Path) -> None:
    """Its scores go up to 24, and rounding with them."""
    convert(Convert("albert-base-wikibooks", tmp_path / "model", "bfloat16"))
    differences = compare_with_transformers(tmp_path / "model")
    assert differences["masked-LM scores"].size > 10
    for name, difference in differences.items():
        assert difference.largest < 3e-5 * max(1.0, difference.size), name


@pytest.mark.parametrize("changed", [{"layer_norm_eps": 1e-5}, {"hidden_act": "gelu"}])
def test_a_folder_that_transformers_computes_otherwise_is_refused(
    changed: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = transformers.AlbertForPreTraining.from_pretrained

    def otherwise(folder: Path, **asked: object) -> torch.nn.Module:
        return theirs(folder, config=transformers.AlbertConfig.from_pretrained(folder, **changed), **asked)

    monkeypatch.setattr(transformers.AlbertForPreTraining, "from_pretrained", otherwise)
    with pytest.raises(UserError, match=r"masked-LM scores differ by .* where the largest is \d\d"):
        convert(Convert("albert-base-wikibooks", tmp_path / "model"))


def test_outputs_that_are_not_numbers_are_no_rounding() -> None:
    assert not Difference(math.nan, 1.0).is_rounding()
    assert not Difference(math.inf, math.inf).is_rounding()


def test_a_folders_multiple_choice_head_is_known_by_its_architecture(tmp_path: Path) -> None:
    config = transformers.AlbertConfig(
        vocab_size=100, hidden_size=32, embedding_size=16, num_attention_heads=2, intermediate_size=64
    )
    transformers.AlbertForMultipleChoice(config).save_pretrained(tmp_path / "theirs")
    convert(Convert(str(tmp_path / "theirs"), tmp_path / "ours"))
    assert huggingface.load(tmp_path / "ours").head_list == (Head("multiple_choice"),)


@pytest.mark.parametrize("kind", ["auto", "classification", "regression", "multi_label"])
def test_the_user_says_what_googles_classifier_is_for(kind: ClassifierKind, tmp_path: Path) -> None:
    convert(Convert(str(GOLDEN / "classifier"), tmp_path / "model", classifier=kind))
    expected = "classification" if kind == "auto" else kind
    assert huggingface.load(tmp_path / "model").head_list == (Head(expected, ("LABEL_0", "LABEL_1", "LABEL_2")),)


def test_a_classifier_of_one_output_is_a_value_or_a_choice() -> None:
    """RACE and STS-B leave the same tensors in Google's checkpoints, so the user says which it is."""
    one = torch.ones(1, 16)
    assert classifier_values(one, "auto")["problem_type"] == "regression"
    assert classifier_values(one, "multiple_choice") == {"architectures": ["AlbertForMultipleChoice"]}


def test_the_tokenizer_travels_with_the_model(
    tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    huggingface.save(AlbertModel(preset("albert-micro")), tmp_path / "source")
    (tmp_path / "source" / "spiece.model").write_bytes(tokenizer.model)
    convert(Convert(str(tmp_path / "source"), tmp_path / "model"))
    assert "tokenizer: " in capsys.readouterr().out
    text = "a line, of text"
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    assert auto(text)["input_ids"][1:-1] == Tokenizer.load(tmp_path / "model").encode(text) == tokenizer.encode(text)


def test_what_a_model_was_tuned_for_travels_with_it(tmp_path: Path) -> None:
    huggingface.save(AlbertModel(preset("albert-micro"), (Head("classification", ("no", "yes")),)), tmp_path / "tuned")
    (tmp_path / "tuned" / "task.json").write_text('{"task": "sst2", "kind": "classification", "max_length": 64}')
    convert(Convert(str(tmp_path / "tuned"), tmp_path / "target", precision="bfloat16"))
    tuned = read_task_info(tmp_path / "target")
    assert tuned is not None
    assert (tuned.task, tuned.max_length) == ("sst2", 64)


def test_a_tokenizer_that_is_too_large_leaves_no_target(tokenizer: Tokenizer, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(GOLDEN / "pretraining", source)
    (source / "30k-clean.model").write_bytes(tokenizer.model)
    with pytest.raises(UserError, match="300 pieces, but the model has room for"):
        convert(Convert(str(source), tmp_path / "model"))
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("file", ["model.ckpt-best", "model.ckpt-best.index", "model.ckpt-best.data-00000-of-00001"])
def test_a_checkpoint_can_be_named_by_its_prefix_or_any_of_its_files(file: str, tmp_path: Path) -> None:
    convert(Convert(str(GOLDEN / "hub" / file), tmp_path / "model"))
    assert tuple(huggingface.load(tmp_path / "model").heads) == ("masked_lm", "sentence_order")


def test_a_presets_name_means_a_fresh_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(Convert("albert-micro", tmp_path / "model"))
    assert "drawn at random" in capsys.readouterr().out
    assert huggingface.load(tmp_path / "model").config == preset("albert-micro")


@pytest.mark.parametrize("source", ["", ".", "/", "/dev/null", "albert-mciro"])
def test_what_is_no_source_is_refused_with_a_sentence(source: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="model folder"):
        convert(Convert(source, tmp_path / "model"))
    assert not (tmp_path / "model").exists()


def test_nothing_is_overwritten_silently(tmp_path: Path) -> None:
    target = tmp_path / "model"
    convert(Convert(str(GOLDEN / "hub"), target))
    with pytest.raises(UserError, match="exists already"):
        convert(Convert(str(GOLDEN / "squad"), target))
    assert tuple(huggingface.load(target).heads) == ("masked_lm", "sentence_order")
    convert(Convert(str(GOLDEN / "squad"), target, fresh=True))
    assert tuple(huggingface.load(target).heads) == ("span",)


def test_fresh_replaces_models_and_empty_folders_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="holds other things than a model"):
        convert(Convert(str(GOLDEN / "hub"), Path(), fresh=True))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    (tmp_path / "empty").mkdir()
    convert(Convert(str(GOLDEN / "hub"), tmp_path / "empty", fresh=True))
    assert (tmp_path / "empty" / "config.json").is_file()


def test_a_broken_source_leaves_no_target(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(GOLDEN / "hub", source)
    data = source / "model.ckpt-best.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-64])
    with pytest.raises(UserError, match=r"model\.ckpt-best"):
        convert(Convert(str(source), tmp_path / "model"))
    (source / "albert_config.json").unlink()
    with pytest.raises(UserError, match=r"expected one albert_config\.json"):
        convert(Convert(str(source), tmp_path / "model"))
    assert not (tmp_path / "model").exists()


def test_loading_a_checkpoint_directly_points_to_convert() -> None:
    with pytest.raises(UserError, match="openalbert convert"):
        huggingface.load(GOLDEN / "hub")
