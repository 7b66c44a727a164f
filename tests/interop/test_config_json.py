"""What becomes of the keys that published ALBERT and BERT configurations carry: read, ignored, warned of or refused."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.finetuning.made_lessons import command, lesson, made_model
from transformers.activations import ACT2FN

from openalbert import cli
from openalbert.errors import InputWarning, UserError
from openalbert.interop import huggingface
from openalbert.interop.config_json import ACTIVATIONS, HARMLESS, KEYS, ONLY, read_config, read_heads
from openalbert.model.layer import activate
from openalbert.text.tokenizer import Tokenizer

BASE: dict[str, dict[str, Any]] = {
    "albert": transformers.AlbertConfig(
        vocab_size=100, hidden_size=32, embedding_size=16, num_hidden_layers=4, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=24,
    ).to_dict(),
    "bert": transformers.BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=4, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=24,
    ).to_dict(),
}  # fmt: skip
BOTH = ("albert", "bert")

# Read: another value makes another model.
READ: dict[str, tuple[Any, tuple[str, ...]]] = {
    "vocab_size": (200, BOTH),
    "hidden_size": (64, BOTH),
    "embedding_size": (8, ("albert",)),
    "num_hidden_layers": (8, BOTH),
    "num_hidden_groups": (2, ("albert",)),
    "num_attention_heads": (4, BOTH),
    "intermediate_size": (128, BOTH),
    "max_position_embeddings": (48, BOTH),
    "type_vocab_size": (1, BOTH),
    "hidden_act": ("relu", BOTH),
    "hidden_dropout_prob": (0.3, BOTH),
    "attention_probs_dropout_prob": (0.3, BOTH),
    "classifier_dropout_prob": (0.3, ("albert",)),
    "classifier_dropout": (0.3, ("bert",)),
    "initializer_range": (0.5, BOTH),
    "layer_norm_eps": (1e-5, BOTH),
}
# Read for the heads, where there is a classifier.
READ_FOR_HEADS: dict[str, Any] = {
    "id2label": {"0": "cold", "1": "warm"},
    "problem_type": "multi_label_classification",
    "num_labels": 3,
    "_num_labels": 3,
    "architectures": ["AlbertForMultipleChoice"],
}
# Ignored without a word: no value can change what an encoder computes.
IGNORED: dict[str, Any] = {
    "_attn_implementation": "eager",
    "_attn_implementation_autoset": True,
    "_commit_hash": "0123abc",
    "_name_or_path": "albert-base-v2",
    "attn_implementation": "eager",
    "bad_words_ids": [[7]],
    "begin_suppress_tokens": [7],
    "bos_token_id": 7,
    "chunk_size_feed_forward": 4,
    "cls_token_id": 7,
    "cross_attention_hidden_size": 16,
    "decoder_start_token_id": 7,
    "diversity_penalty": 0.5,
    "do_sample": True,
    "dtype": "float16",
    "early_stopping": True,
    "encoder_no_repeat_ngram_size": 2,
    "eos_token_id": 7,
    "eos_token_ids": 7,
    "exponential_decay_length_penalty": [1, 1.5],
    "finetuning_task": "sst-2",
    "forced_bos_token_id": 7,
    "forced_eos_token_id": 7,
    "gradient_checkpointing": True,
    "label2id": {"LABEL_0": 0, "LABEL_1": 1},
    "length_penalty": 2.0,
    "mask_token_id": 7,
    "max_length": 20,
    "min_length": 2,
    "name_or_path": "albert-base-v2",
    "no_repeat_ngram_size": 2,
    "num_beam_groups": 2,
    "num_beams": 2,
    "num_return_sequences": 2,
    "output_attentions": False,
    "output_hidden_states": True,
    "output_past": True,
    "output_scores": True,
    "pad_token_id": 1,
    "pooler_fc_size": 768,
    "pooler_num_attention_heads": 12,
    "pooler_num_fc_layers": 3,
    "pooler_size_per_head": 128,
    "pooler_type": "first_token_transform",
    "prefix": "classify: ",
    "remove_invalid_values": True,
    "repetition_penalty": 2.0,
    "return_dict": True,
    "return_dict_in_generate": True,
    "sep_token_id": 7,
    "suppress_tokens": [7],
    "task_specific_params": {"sst-2": {}},
    "temperature": 2.0,
    "tf_legacy_loss": True,
    "tie_encoder_decoder": True,
    "tie_word_embeddings": True,
    "tokenizer_class": "BertTokenizer",
    "top_k": 5,
    "top_p": 0.5,
    "torch_dtype": "float16",
    "torchscript": True,
    "transformers_version": "4.9.2",
    "typical_p": 0.5,
    "unk_token_id": 7,
    "use_bfloat16": True,
    "use_cache": False,
    "xla_device": True,
}
# Ignored without a word at the values that published files have; refused at others, which mean another computation.
REFUSED: dict[str, tuple[tuple[Any, ...], Any]] = {
    "net_structure_type": ((0,), 1),
    "gap_size": ((0,), 2),
    "num_memory_blocks": ((0,), 4),
    "down_scale_factor": ((1, 1.0), 2),
    "layers_to_keep": (([], None), [0, 1]),
    "ln_type": (("postln",), "preln"),
    "inner_group_num": ((1,), 2),
    "position_embedding_type": (("absolute", None), "relative_key"),
    "directionality": (("bidi",), "uni"),
    "is_decoder": ((False,), True),
    "add_cross_attention": ((False, None), True),
    "is_encoder_decoder": ((False,), True),
    "pruned_heads": (({}, [], None), {"0": [1]}),
    "per_layer_config": (({}, None), {"0": {"intermediate_size": 8}}),
    "quantization_config": ((None,), {"load_in_8bit": True, "quant_method": "bitsandbytes"}),
}
# Keys of other code bases, found in published files: nobody can know them all.
UNKNOWN: dict[str, Any] = {
    "adapters": {"adapters": {}},
    "attention_head_size": 16,
    "auto_map": {"AutoModel": "modeling.Other"},
    "cell": {},
    "emb_size": 312,
    "generate_length": 10,
    "language": "en",
    "model_max_length": 128,
    "pre_trained": "",
    "structure": [],
    "summary_type": "first",
    "weights_magic": 1,
}


@pytest.mark.parametrize("family", BOTH)
def test_what_transformers_itself_writes_is_read_without_a_warning(family: str) -> None:
    config = read_config(BASE[family], "config.json")
    kind = transformers.AlbertConfig if family == "albert" else transformers.BertConfig
    # Its own defaults, all keys of them, too.
    read_config(kind().to_dict(), "config.json")
    assert (config.vocab_size, config.hidden_size, config.num_layers, config.max_positions) == (100, 32, 4, 24)


@pytest.mark.parametrize("family", BOTH)
@pytest.mark.parametrize("key", READ)
def test_a_key_that_is_read_makes_another_model(key: str, family: str) -> None:
    value, families = READ[key]
    changed = BASE[family] | {key: value}
    if family in families:
        assert read_config(changed, "config.json") != read_config(BASE[family], "config.json")
    else:
        with pytest.warns(InputWarning, match=f"unknown key '{key}'"):
            assert read_config(changed, "config.json") == read_config(BASE[family], "config.json")


@pytest.mark.parametrize("key", READ_FOR_HEADS)
def test_a_key_that_is_read_for_the_heads_makes_another_head(key: str) -> None:
    plain = {name: value for name, value in BASE["albert"].items() if name not in ("id2label", "label2id")}
    changed = plain | {key: READ_FOR_HEADS[key]}
    assert read_config(changed, "config.json") == read_config(plain, "config.json")
    heads = [read_heads(values, ["classifier.weight"], "config.json") for values in (plain, changed)]
    assert heads[0] != heads[1]
    assert key not in ("num_labels", "_num_labels") or heads[1][0].labels == ("LABEL_0", "LABEL_1", "LABEL_2")


@pytest.mark.parametrize("family", BOTH)
def test_what_cannot_matter_is_ignored_without_a_word(family: str) -> None:
    harmless = IGNORED | {key: values[0] for key, (values, _) in REFUSED.items()}
    assert read_config(BASE[family] | harmless, "config.json") == read_config(BASE[family], "config.json")
    for key, (values, _) in REFUSED.items():
        for value in values:
            read_config(BASE[family] | {key: value}, "config.json")


@pytest.mark.parametrize("family", BOTH)
def test_transformers_computes_the_same_with_all_that_is_ignored(family: str) -> None:
    kinds = (transformers.AlbertConfig, transformers.AlbertModel)
    if family == "bert":
        kinds = (transformers.BertConfig, transformers.BertModel)
    torch.manual_seed(0)
    plain = kinds[1](kinds[0].from_dict(BASE[family])).eval()
    other = kinds[1](kinds[0].from_dict(BASE[family] | IGNORED)).eval()
    other.load_state_dict(plain.state_dict())
    ids, mask = torch.randint(5, 100, (2, 12)), torch.ones(2, 12, dtype=torch.long)
    mask[1, 8:] = 0
    with torch.no_grad():
        expected, found = (model(ids, attention_mask=mask)[0].float() for model in (plain, other))
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()])


@pytest.mark.parametrize("family", BOTH)
@pytest.mark.parametrize("key", REFUSED)
def test_a_value_that_means_another_computation_is_refused_by_name(key: str, family: str) -> None:
    with pytest.raises(UserError, match=rf"^folder/config\.json: {key} is .*which means .*: only .* is read"):
        read_config(BASE[family] | {key: REFUSED[key][1]}, "folder/config.json")


@pytest.mark.parametrize("family", BOTH)
@pytest.mark.parametrize("key", UNKNOWN)
def test_an_unknown_key_is_ignored_with_a_warning_that_names_it(key: str, family: str) -> None:
    with pytest.warns(InputWarning, match=rf"^folder/config\.json: ignored unknown key '{key}': ") as caught:
        config = read_config(BASE[family] | {key: UNKNOWN[key]}, "folder/config.json")
    assert len(caught) == 1
    assert config == read_config(BASE[family], "folder/config.json")


def test_several_unknown_keys_are_one_warning_and_a_misspelt_one_is_set_right() -> None:
    values = {key: value for key, value in BASE["albert"].items() if key != "layer_norm_eps"}
    with pytest.warns(InputWarning) as caught:
        read_config(values | {"layer_norm_ep": 1e-5, "weights_magic": 1}, "config.json")
    assert [str(warning.message) for warning in caught] == [
        "config.json: ignored unknown keys 'layer_norm_ep' (did you mean 'layer_norm_eps'?), 'weights_magic': "
        "check that they do not change what the model computes"
    ]


def test_the_tables_here_name_every_key_that_is_known() -> None:
    assert set(IGNORED) == HARMLESS
    assert set(REFUSED) == set(ONLY)
    named = {key for keys in KEYS.values() for key in keys.values()} | {"hidden_act", "num_hidden_groups"}
    assert named == set(READ)


@pytest.mark.parametrize("name", list(ACT2FN))
def test_an_activation_is_what_transformers_computes_under_its_name_or_refused(name: str) -> None:
    if name not in ACTIVATIONS:
        with pytest.raises(UserError, match=f"hidden_act is '{name}'"):
            read_config(BASE["albert"] | {"hidden_act": name}, "config.json")
        return
    points = torch.linspace(-12, 12, 1001)
    torch.testing.assert_close(activate(points, ACTIVATIONS[name]), ACT2FN[name](points))


@pytest.fixture
def with_unknown_keys(tmp_path: Path, small: Tokenizer) -> Path:
    """A folder as published: with a key of xxlarge's, which means nothing, and two that nobody knows."""
    folder = made_model(tmp_path / "theirs", small)
    path = folder / "config.json"
    more = {"layers_to_keep": [], "emb_size": 312, "weights_magic": 1}
    path.write_text(json.dumps(json.loads(path.read_text()) | more))
    return folder


@pytest.mark.parametrize("verb", ["show", "convert", "fill", "finetune", "pretrain"])
def test_the_command_line_warns_once_in_one_sentence(
    verb: str, with_unknown_keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = str(with_unknown_keys)
    words = {
        "show": ["show", name, "--length", "8", "--json"],
        "convert": ["convert", name, "--out", str(tmp_path / "ours")],
        "fill": ["fill", name, "the [MASK]"],
        "finetune": command(name, "classification", lesson("classification", tmp_path, 40), tmp_path / "run"),
        "pretrain": ["pretrain", name, "--data", str(tmp_path / "none")],
    }[verb]
    if verb == "finetune":
        words += ["--steps", "2"]
    if verb == "pretrain":  # its defaults come from the model; that there is no data is found later
        with pytest.raises(SystemExit):
            cli.main(words)
    else:
        cli.main(words)
    told = [line for line in capsys.readouterr().err.splitlines() if "unknown" in line]
    assert told == [
        f"warning: {name}/config.json: ignored unknown keys 'emb_size', 'weights_magic': "
        "check that they do not change what the model computes"
    ]


def test_what_is_written_again_has_only_known_keys(with_unknown_keys: Path, tmp_path: Path) -> None:
    cli.main(["convert", str(with_unknown_keys), "--out", str(tmp_path / "ours")])
    huggingface.load(tmp_path / "ours")  # a warning is an error in these tests


def test_of_several_processes_the_first_alone_warns(
    with_unknown_keys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    cli.main(["show", str(with_unknown_keys), "--length", "8", "--json"])
    assert capsys.readouterr().err == ""


def test_other_libraries_warnings_are_left_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings(record=True) as caught, cli.warnings_as_sentences():
        warnings.simplefilter("always")
        warnings.warn("a word from elsewhere", RuntimeWarning, stacklevel=1)
    assert [warning.category for warning in caught] == [RuntimeWarning]
    assert capsys.readouterr().err == ""


def test_python_callers_get_the_warning_as_one_of_python(with_unknown_keys: Path) -> None:
    with pytest.warns(InputWarning, match="ignored unknown keys 'emb_size', 'weights_magic'"):
        huggingface.load(with_unknown_keys)
