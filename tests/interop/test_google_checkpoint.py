import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.interop.bundle_writer import write_bundle

from openalbert.errors import UserError
from openalbert.interop.convert import read_checkpoint
from openalbert.interop.google_checkpoint import TensorBundle, hugging_face_name, read_config, read_tensors

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "google"
MAKE = runpy.run_path(str(GOLDEN / "make.py"))
MODELS = MAKE["models"]()
PREFIX = MAKE["PREFIX"]
ALBERT = MAKE["ALBERT"]


def read(name: str) -> tuple[dict[str, np.ndarray], list[str], dict[str, Any]]:
    config = read_config(GOLDEN / name / MODELS[name][0])
    return *read_tensors(GOLDEN / name / PREFIX, config["model_type"]), config


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
    tensors, _, config = read(name)
    stored = json.loads((GOLDEN / "outputs.json").read_text())
    theirs = config | {"hidden_act": "gelu_new"}
    classes = {"albert": transformers.AlbertForPreTraining, "bert": transformers.BertForPreTraining}
    model = loaded(classes[config["model_type"]], theirs, tensors)
    with torch.no_grad():
        found = model(
            torch.tensor(stored["ids"]),
            attention_mask=torch.tensor(stored["mask"]),
            token_type_ids=torch.tensor(stored["segments"]),
            output_hidden_states=True,
        )
        pooled = getattr(model, config["model_type"])(
            torch.tensor(stored["ids"]),
            attention_mask=torch.tensor(stored["mask"]),
            token_type_ids=torch.tensor(stored["segments"]),
        ).pooler_output
    order = found.sop_logits if config["model_type"] == "albert" else found.seq_relationship_logits
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
    tensors, _, config = read(name)
    if name == "squad":  # their span model has no pooler; Google's checkpoint keeps it
        pooler = [tensors.pop(key) for key in ("albert.pooler.weight", "albert.pooler.bias")]
        assert len(pooler) == 2
    model = loaded(model_class, config | {"num_labels": num_labels}, tensors)
    head = model.classifier if name == "classifier" else model.qa_outputs
    prefix = "" if name == "classifier" else "cls/squad/"
    np.testing.assert_array_equal(
        head.weight.detach().numpy(), MAKE["values"](f"{prefix}output_weights", (num_labels, 16))
    )


def test_a_head_of_one_output_fills_the_multiple_choice_model(tmp_path: Path) -> None:
    shapes = MAKE["albert_encoder"](ALBERT) | {"output_weights": (1, 16), "output_bias": (1,)}
    config = made(tmp_path, shapes, ALBERT)
    tensors, _ = read_tensors(tmp_path, "albert")
    loaded(transformers.AlbertForMultipleChoice, config, tensors)


# The names.


@pytest.mark.parametrize("name", MODELS)
def test_there_and_back_is_the_identity_for_every_tensor(name: str) -> None:
    tensors, skipped, config = read(name)
    bundle = TensorBundle.open(GOLDEN / name)
    weights = sorted(set(bundle.entries) - set(skipped))
    assert len(tensors) == len(weights)
    for google in weights:
        theirs = hugging_face_name(google.removeprefix("module/"), config["model_type"])
        assert theirs is not None
        assert tensors[theirs].flags.c_contiguous
        back = tensors[theirs].T if google.endswith("/kernel") else tensors[theirs]
        np.testing.assert_array_equal(back, bundle.read(google))


def test_optimizer_slots_and_the_step_are_skipped() -> None:
    tensors, skipped, _ = read("pretraining")
    assert len(skipped) == 2 * len(tensors) + 1
    assert "global_step" in skipped
    assert "bert/pooler/dense/kernel/adam_v" in skipped


def test_the_scope_of_tf_hub_is_peeled_off() -> None:
    assert set(read("hub")[0]) == set(read("pretraining")[0])


def test_a_model_tuned_from_tf_hub_has_the_scope_on_the_encoder_only(tmp_path: Path) -> None:
    encoder = {f"module/{name}": shape for name, shape in MAKE["albert_encoder"](ALBERT).items()}
    made(tmp_path, encoder | {"output_weights": (2, 16), "output_bias": (2,)}, ALBERT)
    tensors, _ = read_tensors(tmp_path, "albert")
    assert tensors["classifier.weight"].shape == (2, 16)


def test_an_encoder_without_any_head_is_read(tmp_path: Path) -> None:
    config = made(tmp_path, MAKE["albert_encoder"](ALBERT), ALBERT)
    tensors, _ = read_tensors(tmp_path, "albert")
    loaded(transformers.AlbertModel, config, {k[len("albert.") :]: v for k, v in tensors.items()})


def test_inner_layers_of_a_group_are_counted_through(tmp_path: Path) -> None:
    shapes = MAKE["albert_encoder"](ALBERT)
    inner = {name.replace("inner_group_0", "inner_group_1"): shape for name, shape in shapes.items()}
    config = made(tmp_path, shapes | inner, ALBERT | {"inner_group_num": 2})
    tensors, _ = read_tensors(tmp_path, "albert")
    assert "albert.encoder.albert_layer_groups.0.albert_layers.1.ffn.weight" in tensors
    loaded(transformers.AlbertModel, config, {k[len("albert.") :]: v for k, v in tensors.items()})


def test_equal_embedding_and_hidden_size_need_no_map(tmp_path: Path) -> None:
    square = ALBERT | {"embedding_size": 16}
    shapes = MAKE["albert_encoder"](square)
    shapes = {name: shape for name, shape in shapes.items() if "embedding_hidden_mapping_in" not in name}
    made(tmp_path, shapes, square)
    model, report, _ = read_checkpoint(tmp_path, "auto")
    assert not model.config.maps_embedding
    assert len(report.used) == len(shapes)


def test_half_precision_is_widened_to_float32(tmp_path: Path) -> None:
    shapes = MAKE["albert_encoder"](ALBERT)
    made(tmp_path, shapes, ALBERT)
    halves = {name: MAKE["values"](name, shape).astype(np.float16) for name, shape in shapes.items()}
    write_bundle(tmp_path / PREFIX, halves)
    tensors, _ = read_tensors(tmp_path, "albert")
    assert {array.dtype for array in tensors.values()} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(tensors["albert.pooler.bias"], halves["bert/pooler/dense/bias"])


# What does not fit.


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"bert/extra/kernel": (2, 2)}, "'bert/extra/kernel' is not a variable of Google's ALBERT"),
        ({"start_logits/dense/kernel": (16, 1)}, "'start_logits/dense/kernel' is not a variable of Google's ALBERT"),
        ({"bert/embeddings/LayerNorm/beta": None}, "'albert.embeddings.LayerNorm.bias' is missing"),
        ({"output_weights": (2, 16)}, "'classifier.bias' is missing"),
        ({"output_weights": (2, 8), "output_bias": (2,)}, r"'classifier.weight' has shape \[2, 8\]"),
        ({"bert/pooler/dense/kernel": (16, 8)}, r"'albert.pooler.weight' has shape \[8, 16\]"),
        ({"bert/embeddings/word_embeddings": (49, 8)}, r"asks for \[50, 8\]"),
        ({"bert/encoder/transformer/group_1/inner_group_0/LayerNorm/beta": (16,)}, "is not part of this model"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_by_name(
    change: dict[str, tuple[int, ...] | None], reason: str, tmp_path: Path
) -> None:
    shapes = MAKE["albert_encoder"](ALBERT) | change
    made(tmp_path, {name: shape for name, shape in shapes.items() if shape is not None}, ALBERT)
    with pytest.raises(UserError, match=rf"{tmp_path.name}.*{reason}"):
        read_checkpoint(tmp_path, "auto")


def test_damaged_data_is_refused_with_file_and_tensor(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN / "hub", tmp_path / "hub"))
    data = folder / f"{PREFIX}.data-00000-of-00001"
    broken = bytearray(data.read_bytes())
    broken[-1] ^= 1
    data.write_bytes(broken)
    with pytest.raises(UserError, match=r"data-00000-of-00001: 'module/.*' is damaged"):
        read_tensors(folder, "albert")


# The configuration.


def test_the_defaults_of_googles_configuration_are_filled_in(tmp_path: Path) -> None:
    optional = ("num_hidden_groups", "inner_group_num", "hidden_act", "initializer_range", "net_structure_type")
    shapes, configs = MAKE["albert_encoder"](ALBERT), []
    for name, left_out in (("whole", ()), ("short", optional)):
        (tmp_path / name).mkdir()
        made(tmp_path / name, shapes, {key: value for key, value in ALBERT.items() if key not in left_out})
        configs.append(read_checkpoint(tmp_path / name, "auto")[0].config)
    assert configs[0] == configs[1]


def test_gelu_is_the_tanh_form_in_googles_albert() -> None:
    assert read_config(GOLDEN / "hub" / "albert_config.json")["hidden_act"] == "gelu_new"
    assert read_config(GOLDEN / "bert" / "bert_config.json")["hidden_act"] == "gelu"


def test_the_configuration_of_chinese_bert_is_read(tmp_path: Path) -> None:
    more = {"directionality": "bidi", "pooler_fc_size": 768, "pooler_type": "first_token_transform"}
    folder = Path(shutil.copytree(GOLDEN / "bert", tmp_path / "bert"))
    (folder / "bert_config.json").write_text(json.dumps(MAKE["BERT"] | more))
    assert read_checkpoint(folder, "auto")[0].config == read_checkpoint(GOLDEN / "bert", "auto")[0].config


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"vocab_size": None}, "'vocab_size' is missing"),
        ({"hidden_size": "16"}, "hidden_size is '16': a whole number was expected"),
        ({"num_hidden_groups": 4}, "4"),
        ({"num_attention_heads": 3}, "does not divide into 3 heads"),
        ({"hidden_act": "swish"}, "hidden_act is 'swish'"),
        ({"net_structure_type": 2}, "net_structure_type is 2"),
        ({"model_type": "albert"}, "not Google's configuration"),
    ],
)
def test_a_wrong_configuration_is_refused_with_the_key(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    config = {key: value for key, value in (ALBERT | change).items() if value is not None}
    folder = Path(shutil.copytree(GOLDEN / "hub", tmp_path / "hub"))
    (folder / "albert_config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=rf"albert_config\.json: .*{reason}"):
        read_checkpoint(folder, "auto")


@pytest.mark.parametrize("content", [b"{", b"[1, 2]"])
def test_what_is_no_configuration_at_all_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "albert_config.json").write_bytes(content)
    with pytest.raises(UserError, match=r"albert_config\.json: (not a readable JSON file|this is not Google's)"):
        read_config(tmp_path / "albert_config.json")
