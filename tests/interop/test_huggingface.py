"""Parity with Hugging Face's code in outputs and gradients, and folders that travel there and back unchanged."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from openalbert.errors import UserError
from openalbert.interop import huggingface
from openalbert.interop.names import family_of, name_pairs
from openalbert.interop.weights import read_tensors, write_tensors
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS, AlbertConfig, Head, Sharing
from openalbert.model.presets import preset

MICRO = preset("albert-micro")
transformers.logging.disable_progress_bar()
transformers.logging.set_verbosity_error()


def true_width(name: str, num_layers: int) -> AlbertConfig:
    """A preset at its true width, with less depth and fewer words to be quick, and no dropout."""
    config = preset(name)
    sharing = Sharing(num_layers, num_layers) if name.startswith("bert") else config.sharing
    return replace(
        config, num_layers=num_layers, sharing=sharing, vocab_size=500, hidden_dropout=0.0, attention_dropout=0.0
    )


ARCHITECTURES = {
    "albert-base": true_width("albert-base", 3),
    "albert-large": true_width("albert-large", 2),
    "albert-xlarge": true_width("albert-xlarge", 2),
    "albert-xxlarge": true_width("albert-xxlarge", 1),
    "bert-base": true_width("bert-base", 2),
    "groups": replace(MICRO, num_layers=6, sharing=Sharing(3, 3)),
    "not shared": replace(MICRO, num_layers=3, sharing=Sharing(3, 3)),
    "erf gelu": replace(MICRO, activation="gelu_erf"),
    "relu": replace(MICRO, activation="relu"),
    "as wide as the layers": replace(MICRO, embedding_size=64),
    "as wide, with a map": replace(MICRO, embedding_size=64, embedding_map="always"),
}


def make(config: AlbertConfig, heads: tuple[Head, ...] = PRETRAINING_HEADS) -> AlbertModel:
    torch.manual_seed(0)
    model = AlbertModel(config, heads)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name or "norm" in name:  # fresh ones are 0 and 1, which would hide a swap
                parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model


def batch(config: AlbertConfig) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    ids = torch.randint(5, config.vocab_size, (2, 24))
    mask = torch.ones(2, 24, dtype=torch.long)
    mask[1, 15:] = 0
    return {"ids": ids, "segments": (torch.arange(24) >= 9).long().expand(2, -1), "mask": mask}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_outputs_and_gradients_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    config = ARCHITECTURES[name]
    ours = make(config)
    huggingface.save(ours, tmp_path / "model")
    theirs = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "model").eval()
    inputs = batch(config)
    real = inputs["mask"].bool()
    encoded = ours.encode(**inputs)
    words, order = ours.scores("masked_lm", encoded)[real], ours.scores("sentence_order", encoded)
    encoder = getattr(theirs, theirs.base_model_prefix)
    their_inputs = {
        "input_ids": inputs["ids"],
        "token_type_ids": inputs["segments"],
        "attention_mask": inputs["mask"],
    }
    states = encoder(**their_inputs, output_hidden_states=True)
    output = theirs(**their_inputs)
    their_words = output.prediction_logits[real]
    their_order = output.sop_logits if "sop_logits" in output else output.seq_relationship_logits
    our_states = ours.encode(**inputs, all_states=True).states
    assert len(our_states) == len(states.hidden_states) == config.num_layers + 1
    for left, right in zip(our_states, states.hidden_states, strict=True):
        torch.testing.assert_close(left[real], right[real], rtol=0, atol=1e-5)
    torch.testing.assert_close(encoded.pooled, states.pooler_output, rtol=0, atol=1e-5)
    torch.testing.assert_close(words, their_words, rtol=0, atol=1e-5)
    torch.testing.assert_close(order, their_order, rtol=0, atol=1e-5)

    labels = torch.randint(0, config.vocab_size, (len(words),))
    for word_scores, order_scores in ((words, order), (their_words, their_order)):
        loss = torch.nn.functional.cross_entropy(word_scores, labels)
        (loss + torch.nn.functional.cross_entropy(order_scores, torch.tensor([0, 1]))).backward()
    family = family_of(config)
    assert family is not None
    parameters = dict(ours.named_parameters())
    pairs = name_pairs(family, config, PRETRAINING_HEADS)
    assert {pair.ours for pair in pairs} == set(parameters)
    for pair in pairs:
        gradient = parameters[pair.ours].grad
        assert gradient is not None
        gradient = gradient if pair.third is None else gradient.chunk(3)[pair.third]
        expected = theirs.get_parameter(pair.theirs).grad
        assert expected is not None, pair
        if pair.third == 1 and pair.ours.endswith("bias"):
            # Adding one number to all keys changes no probability: the true gradient is zero, and both are rounding.
            assert gradient.abs().max() < 1e-6, pair
            assert expected.abs().max() < 1e-6, pair
        else:
            assert (gradient - expected).norm() <= 1e-4 * expected.norm(), pair


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if "xlarge" not in name])
def test_there_and_back_is_the_identity(name: str, tmp_path: Path) -> None:
    config = replace(ARCHITECTURES[name], hidden_dropout=0.1, classifier_dropout=0.2)
    ours = make(config)
    huggingface.save(ours, tmp_path / "ours")
    theirs = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    for folder in ("ours", "theirs"):
        again, account = huggingface.read_model(tmp_path / folder)
        assert again.config == config
        assert again.head_list == PRETRAINING_HEADS
        assert not account.fresh
        for (name, parameter), other in zip(ours.named_parameters(), again.parameters(), strict=True):
            assert torch.equal(parameter, other), name


HEADS = {
    "AlbertForSequenceClassification": Head("classification", ("bad", "fair", "good")),
    "AlbertForQuestionAnswering": Head("span"),
    "AlbertForMultipleChoice": Head("multiple_choice"),
    "AlbertForMaskedLM": Head("masked_lm"),
    "AlbertForTokenClassification": Head("tagging", ("O", "B-place", "I-place")),
}


@pytest.mark.parametrize("architecture", HEADS)
def test_the_heads_of_tasks_give_the_same_scores_in_transformers(architecture: str, tmp_path: Path) -> None:
    head = HEADS[architecture]
    ours = make(MICRO, (head,)).eval()
    huggingface.save(ours, tmp_path / "model")
    theirs = getattr(transformers, architecture).from_pretrained(tmp_path / "model").eval()
    inputs = batch(MICRO)
    with torch.no_grad():
        scores = ours.scores(head.kind, ours.encode(**inputs))
        names = {"input_ids": "ids", "token_type_ids": "segments", "attention_mask": "mask"}
        their_inputs = {theirs_: inputs[ours_] for theirs_, ours_ in names.items()}
        if head.kind == "multiple_choice":
            output = theirs(**{name: tensor[None] for name, tensor in their_inputs.items()}).logits.view(-1, 1)
        elif head.kind == "span":
            both = theirs(**their_inputs)
            output = torch.stack((both.start_logits, both.end_logits), -1)
        else:
            output = theirs(**their_inputs).logits
    real = inputs["mask"].bool() if scores.dim() == 3 else ...
    torch.testing.assert_close(scores[real], output[real], rtol=0, atol=1e-5)
    again, _ = huggingface.read_model(tmp_path / "model")
    assert again.head_list == (head,)
    if head.labels:
        assert theirs.config.id2label == dict(enumerate(head.labels))


@pytest.mark.parametrize(
    "heads",
    [
        (Head("regression"),),
        (Head("regression", ("left", "right")),),
        (Head("multi_label", ("a", "b")),),
        (Head("span"), Head("answerability")),
        (),
    ],
)
def test_every_kind_of_head_reads_back(heads: tuple[Head, ...], tmp_path: Path) -> None:
    huggingface.save(make(MICRO, heads), tmp_path / "model")
    assert huggingface.read_model(tmp_path / "model")[0].head_list == heads


@pytest.mark.parametrize("sharing", [Sharing(1, 2), Sharing(2, 1)])
def test_what_transformers_cannot_express_loads_here_and_says_so_there(sharing: Sharing, tmp_path: Path) -> None:
    ours = make(replace(MICRO, sharing=sharing))
    huggingface.save(ours, tmp_path / "model")
    again = huggingface.load(tmp_path / "model")
    assert again.config == ours.config
    assert all(torch.equal(*pair) for pair in zip(ours.parameters(), again.parameters(), strict=True))
    with pytest.raises(ValueError, match="in a way that transformers cannot express"):
        transformers.AutoModel.from_pretrained(tmp_path / "model")


def test_their_rule_for_groups_is_ours_wherever_we_say_so() -> None:
    """Theirs divides floating-point numbers; family_of must notice wherever that lands elsewhere."""
    for num_layers in range(1, 49):
        for groups in range(1, num_layers + 1):
            config = replace(MICRO, num_layers=num_layers, sharing=Sharing(groups, groups))
            theirs = [int(layer / (num_layers / groups)) for layer in range(num_layers)]
            same = theirs == [layer * groups // num_layers for layer in range(num_layers)]
            assert (family_of(config) is not None) == same


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_weights_stored_in_half_precision_are_upcast(precision: huggingface.Precision, tmp_path: Path) -> None:
    ours = make(MICRO)
    huggingface.save(ours, tmp_path / "model", precision=precision)
    dtype = getattr(torch, precision)
    assert {tensor.dtype for tensor in load_file(tmp_path / "model" / "model.safetensors").values()} == {dtype}
    again = huggingface.load(tmp_path / "model")
    for parameter, other in zip(ours.parameters(), again.parameters(), strict=True):
        assert other.dtype == torch.float32
        assert torch.equal(parameter.to(dtype).float(), other)
    assert transformers.AutoModel.from_pretrained(tmp_path / "model").dtype == dtype


def test_their_bare_encoder_and_models_without_a_pooler_load_here(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.AlbertConfig(
        vocab_size=100, hidden_size=32, embedding_size=16, num_attention_heads=2, intermediate_size=64
    )
    transformers.AlbertModel(config).save_pretrained(tmp_path / "bare")
    assert huggingface.load(tmp_path / "bare").head_list == ()
    transformers.AlbertForMaskedLM(config).save_pretrained(tmp_path / "words")
    with pytest.warns(UserWarning, match="has no pooler"):
        model = huggingface.load(tmp_path / "words")
    assert model.head_list == (Head("masked_lm"),)
    assert model.encoder.pooler.weight.std() > 0.01


def test_a_split_folder_loads_here(tmp_path: Path) -> None:
    ours = make(preset("bert-micro"))
    huggingface.save(ours, tmp_path / "ours")
    theirs = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "split", max_shard_size="200KB")
    assert len(list((tmp_path / "split").glob("*.safetensors"))) > 1
    again = huggingface.load(tmp_path / "split")
    assert all(torch.equal(*pair) for pair in zip(ours.parameters(), again.parameters(), strict=True))


def test_load_gives_a_fresh_model_by_a_presets_name() -> None:
    model = huggingface.load("albert-base")
    assert model.num_parameters() == 11_683_584
    encoded = model.encode(torch.randint(5, 30000, (2, 7)))
    assert encoded.hidden.shape == (2, 7, 768)
    assert encoded.pooled.shape == (2, 768)
    assert not model.training


def test_heads_asked_for_are_kept_or_drawn(tmp_path: Path) -> None:
    ours = make(MICRO)
    huggingface.save(ours, tmp_path / "model")
    model = huggingface.load(tmp_path / "model", heads=(Head("masked_lm"), Head("classification", ("no", "yes"))))
    assert torch.equal(model.heads["masked_lm"].bias, ours.heads["masked_lm"].bias)
    assert set(model.heads) == {"masked_lm", "classification"}


def write(tmp_path: Path, **changes: Any) -> Path:
    """A folder with changed keys in its config.json; None takes a key away."""
    folder = tmp_path / "model"
    huggingface.save(make(MICRO), folder)
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
    return folder


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'"),
        ({"model_type": None}, "there is no model_type: add one"),
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"hidden_size": "wide"}, r"config\.json: hidden_size is 'wide': a whole number was expected"),
        ({"hidden_size": "64"}, "hidden_size is '64': a whole number"),
        ({"hidden_size": 64.5}, "hidden_size is 64.5: a whole number"),
        ({"hidden_size": -64}, r"config\.json: hidden_size is -64"),
        ({"vocab_size": 10**8}, r"word_embeddings.weight' has shape \[1000, 32\]"),
        ({"hidden_dropout_prob": "0.1"}, "hidden_dropout_prob is '0.1': a number"),
        ({"num_hidden_groups": [1]}, r"num_hidden_groups is \[1\]: a whole number"),
        ({"num_hidden_groups": 10**7, "num_hidden_layers": 10**7}, "asks for 10000000 attention .* only 32 tensors"),
        ({"hidden_act": ["gelu"]}, "hidden_act is"),
        ({"openalbert": []}, "the section 'openalbert' is"),
        ({"openalbert": {}}, "AlbertConfig does not fit"),
        ({"openalbert": {"config": {}, "heads": 3}}, "openalbert.heads is 3"),
        ({"hidden_act": "swish"}, "hidden_act is 'swish'"),
        ({"inner_group_num": 2}, "inner_group_num is 2"),
        ({"position_embedding_type": "relative_key"}, "only 'absolute' is read"),
        ({"is_decoder": True}, "decoder"),
        ({"vocab_size": 999}, r"word_embeddings.weight' has shape \[1000, 32\], but config.json asks for \[999, 32\]"),
        ({"num_hidden_groups": 2}, "albert_layer_groups.1.albert_layers.0.attention.query.weight' is missing"),
    ],
)
def test_a_config_that_does_not_fit_is_refused_by_name(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        huggingface.load(write(tmp_path, **changes))


def test_wrong_tensors_are_refused_by_name(tmp_path: Path) -> None:
    folder = write(tmp_path)
    path = folder / "model.safetensors"
    whole = read_tensors(path)
    name = "albert.pooler.weight"
    for tensors, sentence in (
        (
            {key: tensor for key, tensor in whole.items() if key != name},
            f"model.safetensors: the tensor '{name}' is missing",
        ),
        (
            whole | {"albert.poler.weight": torch.ones(1)},
            "'albert.poler.weight' is not part.*did you mean 'albert.pool",
        ),
        (whole | {name: torch.ones(64, 63)}, r"'albert.pooler.weight' has shape \[64, 63\]"),
        (whole | {name: torch.ones(64, 64, dtype=torch.int32)}, "holds torch.int32"),
        (whole | {"predictions.decoder.weight": torch.ones(1000, 32)}, "differs from"),
    ):
        write_tensors(path, tensors)
        with pytest.raises(UserError, match=sentence):
            huggingface.load(folder)


def test_every_flipped_byte_of_the_weights_is_found(tmp_path: Path) -> None:
    folder = write(tmp_path)
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(0, len(whole), (100,), generator=generator).tolist()
    for place in (*places, 0, 3, 8, 20, len(whole) - 1):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"model\.safetensors|tensor|missing"):
            huggingface.read_model(folder)


@pytest.mark.parametrize("kept", [0, 4, 100, 10_000, -1])
def test_truncated_weights_are_refused(kept: int, tmp_path: Path) -> None:
    folder = write(tmp_path)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UserError, match="not a whole safetensors file"):
        huggingface.load(folder)


@pytest.mark.parametrize("labels", [{"x": "a", "y": "b"}, {"0": "a", "5": "b"}, ["a", "b"], "ab"])
def test_names_of_classes_that_do_not_count_from_0_are_refused(labels: Any, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    huggingface.save(make(MICRO, (Head("classification", ("no", "yes")),)), folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"id2label": labels}))
    with pytest.raises(UserError, match="id2label is"):
        huggingface.load(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "model.pt"])
def test_a_pickle_is_never_read(name: str, tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(UserError, match="a pickle can run code"):
        huggingface.load(folder)


def test_folders_and_names_that_are_none_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="did you mean 'albert-base'"):
        huggingface.load("albert-bsae")
    with pytest.raises(UserError, match=r"no config\.json"):
        huggingface.load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="not a JSON file"):
        huggingface.load(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(UserError, match="JSON object"):
        huggingface.load(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match="hub did not give it"):
        huggingface.load("nobody/nothing-at-all")


def test_an_index_cannot_lead_out_of_its_folder(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "model.safetensors").unlink()
    save_file({"x": torch.ones(1)}, tmp_path / "outside.safetensors")
    for file in ("../outside.safetensors", str(tmp_path / "outside.safetensors"), 3):
        index = {"weight_map": {"x": file}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(UserError, match="not the name of a file in this folder"):
            huggingface.load(folder)


def test_a_failed_save_leaves_the_old_folder_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path)
    before = (folder / "model.safetensors").read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(huggingface, "write_tensors", full)
    with pytest.raises(OSError, match="No space left"):
        huggingface.save(make(MICRO), folder)
    assert (folder / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_equal_tensors_give_equal_files(tmp_path: Path) -> None:
    """The order of safetensors' metadata changes from call to call; ours must not."""
    model = make(MICRO)
    files = set()
    for number in range(12):
        huggingface.save(model, tmp_path / str(number))
        files.add((tmp_path / str(number) / "model.safetensors").read_bytes())
    assert len(files) == 1
    assert load_file(tmp_path / "0" / "model.safetensors").keys() == huggingface.hugging_face_tensors(model).keys()


def test_saving_never_replaces_a_folder_of_other_things(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="holds other things than a model"):
        huggingface.save(AlbertModel(preset("albert-micro")), tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("sharing", [Sharing(), Sharing(1, 2)])  # Hugging Face has no name for the second
def test_whether_a_folder_is_for_a_task_is_known_without_its_weights(sharing: Sharing, tmp_path: Path) -> None:
    for number, heads in enumerate([(), PRETRAINING_HEADS, (Head("classification", ("a", "b")),), (Head("span"),)]):
        folder = tmp_path / str(number)
        huggingface.save(make(replace(MICRO, num_layers=2, sharing=sharing), heads), folder)
        (folder / "model.safetensors").unlink()
        assert ("openalbert" in json.loads((folder / "config.json").read_text())) == (sharing.ffn == 2)
        assert huggingface.has_task_head(folder) == (number > 1)
