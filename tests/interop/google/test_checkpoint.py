import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.interop.google.bundle_writer import write_bundle

from openalbert.errors import UserError
from openalbert.interop.google.checkpoint import (
    HUGGING_FACE_NAMES,
    Report,
    family,
    hugging_face_config,
    read_config,
    read_tensors,
)
from openalbert.interop.google.tensor_bundle import TensorBundle

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "google"
MAKE = runpy.run_path(str(GOLDEN / "make.py"))
MODELS = MAKE["models"]()
PREFIX = MAKE["PREFIX"]
ALBERT = MAKE["ALBERT"]


def read(name: str) -> tuple[dict[str, np.ndarray], Report, dict[str, Any]]:
    config = read_config(GOLDEN / name / MODELS[name][0])
    return *read_tensors(GOLDEN / name / PREFIX, config), config


def loaded(model_class: Any, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Any:
    """A model of transformers with these tensors, and no other but the tied ones."""
    model = model_class(model_class.config_class(**config)).eval()
    tied = set(model._tied_weights_keys or {})
    result = model.load_state_dict({name: torch.from_numpy(array) for name, array in tensors.items()}, strict=False)
    assert not result.unexpected_keys
    assert set(result.missing_keys) <= tied
    model.tie_weights()
    return model


def made(folder: Path, shapes: dict[str, tuple[int, ...]], config: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint of the variables given, and its configuration as it is read."""
    write_bundle(folder / PREFIX, {name: MAKE["values"](name, shape) for name, shape in shapes.items()})
    (folder / "albert_config.json").write_text(json.dumps(config))
    return read_config(folder / "albert_config.json")


# Against TensorFlow and transformers.


@pytest.mark.parametrize("name", ["pretraining", "groups", "bert"])
def test_transformers_computes_with_the_tensors_what_tensorflow_computed(name: str) -> None:
    tensors, report, config = read(name)
    stored = json.loads((GOLDEN / "outputs.json").read_text())
    theirs = hugging_face_config(config) | {"hidden_act": "gelu_new"}
    classes = {"albert": transformers.AlbertForPreTraining, "bert": transformers.BertForPreTraining}
    model = loaded(classes[report.family], theirs, tensors)
    with torch.no_grad():
        found = model(
            torch.tensor(stored["ids"]),
            attention_mask=torch.tensor(stored["mask"]),
            token_type_ids=torch.tensor(stored["segments"]),
            output_hidden_states=True,
        )
        pooled = getattr(model, report.family)(
            torch.tensor(stored["ids"]),
            attention_mask=torch.tensor(stored["mask"]),
            token_type_ids=torch.tensor(stored["segments"]),
        ).pooler_output
    order = found.sop_logits if report.family == "albert" else found.seq_relationship_logits
    expected = {key: torch.tensor(value) for key, value in stored[name].items()}
    close = {"rtol": 0, "atol": 1e-5}
    torch.testing.assert_close(torch.stack(found.hidden_states), expected["hidden"], **close)
    torch.testing.assert_close(pooled, expected["pooled"], **close)
    torch.testing.assert_close(found.prediction_logits, expected["masked_lm"], **close)
    torch.testing.assert_close(order, expected["sentence_order"], **close)


@pytest.mark.parametrize(
    ("name", "model_class", "num_labels"),
    [
        ("classifier", transformers.AlbertForSequenceClassification, 3),
        ("squad", transformers.AlbertForQuestionAnswering, 2),
    ],
)
def test_fine_tuned_heads_fill_the_models_of_transformers(name: str, model_class: Any, num_labels: int) -> None:
    tensors, report, config = read(name)
    if name == "squad":  # their span model has no pooler; Google's checkpoint keeps it
        pooler = [tensors.pop(key) for key in ("albert.pooler.weight", "albert.pooler.bias")]
        assert len(pooler) == 2
    model = loaded(model_class, hugging_face_config(config) | {"num_labels": num_labels}, tensors)
    assert report.groups[-1] == {"classifier": "classifier", "squad": "span"}[name]
    head = model.classifier if name == "classifier" else model.qa_outputs
    prefix = "" if name == "classifier" else "cls/squad/"
    np.testing.assert_array_equal(
        head.weight.detach().numpy(), MAKE["values"](f"{prefix}output_weights", (num_labels, 16))
    )


def test_a_head_of_one_output_fills_the_multiple_choice_model(tmp_path: Path) -> None:
    shapes = MAKE["albert_encoder"](ALBERT) | {"output_weights": (1, 16), "output_bias": (1,)}
    config = made(tmp_path, shapes, ALBERT)
    tensors, _ = read_tensors(tmp_path, config)
    loaded(transformers.AlbertForMultipleChoice, hugging_face_config(config), tensors)


# The names.


@pytest.mark.parametrize("name", MODELS)
def test_there_and_back_is_the_identity_for_every_tensor(name: str) -> None:
    tensors, report, _ = read(name)
    bundle = TensorBundle.open(GOLDEN / name)
    assert set(report.read) | set(report.skipped) == set(bundle.entries)
    assert len(report.read) + len(report.skipped) == len(bundle.entries)
    assert sorted(report.read.values()) == sorted(tensors)
    assert report.added == ()
    for google, theirs in report.read.items():
        assert tensors[theirs].flags.c_contiguous
        back = tensors[theirs].T if google.endswith("/kernel") else tensors[theirs]
        np.testing.assert_array_equal(back, bundle.read(google))


@pytest.mark.parametrize("kind", ["albert", "bert"])
def test_no_name_is_in_the_table_twice(kind: Any) -> None:
    pairs = [pair for part in HUGGING_FACE_NAMES[kind] for pair in part.pairs]
    assert len({pair.google for pair in pairs}) == len({pair.hugging_face for pair in pairs}) == len(pairs)
    assert all(pair.transposed == pair.google.endswith("/kernel") for pair in pairs)


def test_optimizer_slots_and_the_step_are_skipped_and_counted() -> None:
    _, report, _ = read("pretraining")
    assert len(report.skipped) == 2 * len(report.read) + 1
    assert "global_step" in report.skipped
    assert "bert/pooler/dense/kernel/adam_v" in report.skipped


def test_the_scope_of_tf_hub_is_peeled_off() -> None:
    tensors, report, _ = read("hub")
    assert all(name.startswith("module/") for name in report.read)
    assert set(tensors) == set(read("pretraining")[0])


def test_a_model_tuned_from_tf_hub_has_the_scope_on_the_encoder_only(tmp_path: Path) -> None:
    encoder = {f"module/{name}": shape for name, shape in MAKE["albert_encoder"](ALBERT).items()}
    config = made(tmp_path, encoder | {"output_weights": (2, 16), "output_bias": (2,)}, ALBERT)
    tensors, _ = read_tensors(tmp_path, config)
    assert tensors["classifier.weight"].shape == (2, 16)


def test_one_variable_with_and_without_the_scope_is_refused(tmp_path: Path) -> None:
    shapes = MAKE["albert_encoder"](ALBERT) | {"module/bert/pooler/dense/bias": (16,)}
    config = made(tmp_path, shapes, ALBERT)
    with pytest.raises(UserError, match="'bert/pooler/dense/bias' is there twice"):
        read_tensors(tmp_path, config)


def test_an_encoder_without_any_head_is_read(tmp_path: Path) -> None:
    config = made(tmp_path, MAKE["albert_encoder"](ALBERT), ALBERT)
    tensors, report = read_tensors(tmp_path, config)
    assert report.groups == ("embeddings", "embedding map", "layers", "pooler")
    loaded(transformers.AlbertModel, hugging_face_config(config), {k[len("albert.") :]: v for k, v in tensors.items()})


def test_inner_layers_of_a_group_are_counted_through(tmp_path: Path) -> None:
    shapes = MAKE["albert_encoder"](ALBERT)
    inner = {name.replace("inner_group_0", "inner_group_1"): shape for name, shape in shapes.items()}
    config = made(tmp_path, shapes | inner, ALBERT | {"inner_group_num": 2})
    tensors, _ = read_tensors(tmp_path, config)
    assert "albert.encoder.albert_layer_groups.0.albert_layers.1.ffn.weight" in tensors
    loaded(transformers.AlbertModel, hugging_face_config(config), {k[len("albert.") :]: v for k, v in tensors.items()})


def test_equal_embedding_and_hidden_size_gets_an_identity_map(tmp_path: Path) -> None:
    square = ALBERT | {"embedding_size": 16}
    shapes = MAKE["albert_encoder"](square)
    shapes = {name: shape for name, shape in shapes.items() if "embedding_hidden_mapping_in" not in name}
    config = made(tmp_path, shapes, square)
    tensors, report = read_tensors(tmp_path, config)
    weight = "albert.encoder.embedding_hidden_mapping_in.weight"
    assert report.added == (weight, weight.replace("weight", "bias"))
    np.testing.assert_array_equal(tensors[weight], np.eye(16))
    assert not tensors[report.added[1]].any()


def test_half_precision_is_widened_to_float32(tmp_path: Path) -> None:
    shapes = MAKE["albert_encoder"](ALBERT)
    config = made(tmp_path, shapes, ALBERT)
    halves = {name: MAKE["values"](name, shape).astype(np.float16) for name, shape in shapes.items()}
    write_bundle(tmp_path / PREFIX, halves)
    tensors, _ = read_tensors(tmp_path, config)
    assert {array.dtype for array in tensors.values()} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(tensors["albert.pooler.bias"], halves["bert/pooler/dense/bias"])


# What does not fit.


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"bert/extra/kernel": (2, 2)}, r"unknown 1 \(bert/extra/kernel\)"),
        ({"bert/pooler/dense/bias": None}, r"missing 1 \(bert/pooler/dense/bias\)"),
        ({"output_weights": (2, 16)}, r"missing 1 \(output_bias\)"),
        ({"output_weights": (2, 16), "output_bias": (3,)}, r"'output_bias' should have the shape \(2,\), found \(3,\)"),
        ({"output_weights": (2, 8), "output_bias": (2,)}, r"'output_weights' should have the shape \(2, 16\)"),
        ({"output_weights": (2,), "output_bias": (2,)}, r"'output_weights' should have the shape"),
        ({"bert/pooler/dense/kernel": (16, 8)}, r"'bert/pooler/dense/kernel' should have the shape \(16, 16\)"),
        ({"bert/embeddings/word_embeddings": (49, 8)}, r"should have the shape \(50, 8\), found \(49, 8\)"),
        (
            {"start_logits/dense/kernel": (16, 1), "answer_class/dense_1/kernel": (16, 1)},
            "beam-search.*answer_class/dense_1/kernel, start_logits/dense/kernel",
        ),
        (
            {"bert/encoder/transformer/group_1/inner_group_0/LayerNorm/beta": (16,)},
            r"unknown 1 \(bert/encoder/transformer/group_1/inner_group_0/LayerNorm/beta\)",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_by_name(
    change: dict[str, tuple[int, ...] | None], reason: str, tmp_path: Path
) -> None:
    shapes = MAKE["albert_encoder"](ALBERT) | change
    config = made(tmp_path, {name: shape for name, shape in shapes.items() if shape is not None}, ALBERT)
    with pytest.raises(UserError, match=rf"{PREFIX}.*{reason}"):
        read_tensors(tmp_path, config)


def test_whole_numbers_in_place_of_weights_are_refused(tmp_path: Path) -> None:
    shapes = MAKE["albert_encoder"](ALBERT)
    config = made(tmp_path, shapes, ALBERT)
    arrays = {name: MAKE["values"](name, shape) for name, shape in shapes.items()}
    write_bundle(tmp_path / PREFIX, arrays | {"bert/pooler/dense/bias": np.zeros(16, np.int64)})
    with pytest.raises(UserError, match="'bert/pooler/dense/bias' should hold floating-point numbers, found int64"):
        read_tensors(tmp_path, config)


def test_a_bert_checkpoint_with_the_configuration_of_an_albert_is_refused() -> None:
    with pytest.raises(UserError, match="not the ALBERT of its configuration: missing"):
        read_tensors(GOLDEN / "bert", read_config(GOLDEN / "hub" / "albert_config.json") | {"embedding_size": 16})


def test_a_configuration_of_a_billion_layers_is_refused_at_once() -> None:
    config = read_config(GOLDEN / "bert" / "bert_config.json") | {"num_hidden_layers": 10**9}
    with pytest.raises(UserError, match="1000000000 layers with weights of their own, but the checkpoint holds 47"):
        read_tensors(GOLDEN / "bert", config)


def test_damaged_data_is_refused_with_file_and_tensor(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN / "hub", tmp_path / "hub"))
    data = folder / f"{PREFIX}.data-00000-of-00001"
    broken = bytearray(data.read_bytes())
    broken[-1] ^= 1
    data.write_bytes(broken)
    with pytest.raises(UserError, match=r"data-00000-of-00001: 'module/.*' is damaged"):
        read_tensors(folder, read_config(folder / "albert_config.json"))


# The configuration.


def test_the_configuration_keeps_googles_keys_and_fills_in_its_defaults(tmp_path: Path) -> None:
    config = read_config(GOLDEN / "groups" / "albert_config.json")
    assert family(config) == "albert"
    assert {key: config[key] for key in ("num_hidden_groups", "inner_group_num", "hidden_act")} == {
        "num_hidden_groups": 2,
        "inner_group_num": 1,
        "hidden_act": "gelu",
    }
    optional = ("num_hidden_groups", "inner_group_num", "hidden_act", "initializer_range", "net_structure_type")
    short = {key: value for key, value in ALBERT.items() if key not in optional}
    (tmp_path / "short.json").write_text(json.dumps(short))
    assert read_config(tmp_path / "short.json") == read_config(GOLDEN / "hub" / "albert_config.json")


def test_gelu_is_the_tanh_form_in_googles_albert() -> None:
    assert hugging_face_config(read_config(GOLDEN / "hub" / "albert_config.json"))["hidden_act"] == "gelu_new"
    assert hugging_face_config(read_config(GOLDEN / "bert" / "bert_config.json"))["hidden_act"] == "gelu"


def test_the_configuration_of_chinese_bert_is_read(tmp_path: Path) -> None:
    more = {"directionality": "bidi", "pooler_fc_size": 768, "pooler_type": "first_token_transform"}
    (tmp_path / "bert_config.json").write_text(json.dumps(MAKE["BERT"] | more))
    assert read_config(tmp_path / "bert_config.json") == read_config(GOLDEN / "bert" / "bert_config.json")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"vocab_size": None, "hidden_size": None}, "vocab_size, hidden_size missing"),
        (
            {"num_hidden_group": 1},
            "'num_hidden_group' is not a key of Google's ALBERT: did you mean 'num_hidden_groups'",
        ),
        ({"hidden_size": "16"}, "hidden_size should be a whole number above 0, found '16'"),
        ({"hidden_size": 16.0}, "hidden_size should be a whole number above 0, found 16.0"),
        ({"num_hidden_layers": True}, "num_hidden_layers should be a whole number above 0, found True"),
        ({"num_hidden_groups": 0}, "num_hidden_groups should be a whole number above 0, found 0"),
        ({"num_hidden_groups": 4}, "num_hidden_groups should not exceed num_hidden_layers"),
        ({"num_attention_heads": 3}, "multiple of num_attention_heads"),
        ({"hidden_dropout_prob": 1.5}, "hidden_dropout_prob should be a number from 0 to below 1, found 1.5"),
        ({"hidden_dropout_prob": float("nan")}, "hidden_dropout_prob should be a number"),
        ({"hidden_act": "swish"}, "hidden_act should be one of gelu, relu, found 'swish'"),
        ({"hidden_act": []}, "hidden_act should be one of"),
        ({"net_structure_type": 2}, "net_structure_type should be 0, found 2"),
        ({"model_type": "albert"}, "Hugging Face configuration"),
    ],
)
def test_a_wrong_configuration_is_refused_with_the_key(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    config = {key: value for key, value in (ALBERT | change).items() if value is not None}
    path = tmp_path / "albert_config.json"
    path.write_text(json.dumps(config))
    with pytest.raises(UserError, match=rf"albert_config\.json: .*{reason}"):
        read_config(path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"\x80\x04K\x01.", b"[1, 2]", b"null"])
def test_what_is_no_configuration_at_all_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "albert_config.json").write_bytes(content)
    with pytest.raises(UserError, match=r"albert_config\.json: (not a readable JSON file|expected a JSON object)"):
        read_config(tmp_path / "albert_config.json")


def test_a_missing_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"albert_config\.json: no such file"):
        read_config(tmp_path / "albert_config.json")
    with pytest.raises(UserError, match="not a readable JSON file"):
        read_config(tmp_path)
