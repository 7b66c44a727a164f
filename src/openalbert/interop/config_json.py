"""config.json of a model folder: our configuration in Hugging Face's keys, and back.

A key is read, harmless, or means another computation (then the model is refused). Any other key is ignored with a
warning, since files on the hub carry keys of many code bases.
"""

import difflib
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from openalbert.errors import InputWarning, UserError, suggestion
from openalbert.interop.names import Family, family_of
from openalbert.model.config import Activation, AlbertConfig, Head, HeadKind, Sharing
from openalbert.settings import from_dict, to_dict

OWN_SECTION = "openalbert"  # holds a configuration that Hugging Face cannot express

# Theirs -> ours. Their released ALBERT files name the tanh approximation `gelu_new`.
ACTIVATIONS: dict[str, Activation] = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "relu": "relu",
}
PROBLEM_TYPES: dict[str, HeadKind] = {
    "single_label_classification": "classification",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}
UNNAMED_VALUE = ("LABEL_0",)
ARCHITECTURES = {
    "masked_lm": "ForMaskedLM",
    "span": "ForQuestionAnswering",
    "multiple_choice": "ForMultipleChoice",
    "tagging": "ForTokenClassification",
}


# Our names -> their keys, in both families.
_SHARED = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "ffn_size": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "num_segments": "type_vocab_size",
    "hidden_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "initializer_range": "initializer_range",
    "layer_norm_epsilon": "layer_norm_eps",
}
KEYS: dict[Family, dict[str, str]] = {
    "albert": _SHARED | {"embedding_size": "embedding_size", "classifier_dropout": "classifier_dropout_prob"},
    "bert": _SHARED | {"classifier_dropout": "classifier_dropout"},
}
# Also read, but not one to one: the activation, the groups of layers, and the heads.
_READ_OTHERWISE = ("hidden_act", "model_type", "architectures", "id2label", "problem_type", "num_labels", "_num_labels")


@dataclass(frozen=True)
class Only:
    """The only value of a key for which the model computes the same as ours."""

    value: Any
    otherwise: str
    """What any other value means."""


# Keys of Google's unpublished experiments. All published files have these values; neither Google's code nor
# transformers supports others.
EXPERIMENTS: dict[str, Only] = {
    key: Only(value, "an architecture of unpublished experiments")
    for key, value in {
        "net_structure_type": 0,
        "gap_size": 0,
        "num_memory_blocks": 0,
        "down_scale_factor": 1,
        "layers_to_keep": [],
        "ln_type": "postln",
    }.items()
}
# Null means the same as the value, and so does an empty table or list.
ONLY: dict[str, Only] = EXPERIMENTS | {
    "inner_group_num": Only(1, "layers that alternate inside a group"),
    "position_embedding_type": Only("absolute", "positions that enter the attention scores"),
    "directionality": Only("bidi", "attention in one direction"),
    "is_decoder": Only(False, "a decoder"),
    "add_cross_attention": Only(False, "a decoder that attends to an encoder"),
    "is_encoder_decoder": Only(False, "an encoder with a decoder"),
    "pruned_heads": Only({}, "layers without some of their attention heads"),
    "per_layer_config": Only({}, "layers of different shapes"),
    "quantization_config": Only({}, "weights that are stored as whole numbers with scales"),
}

# Keys that cannot change what an encoder computes.
HARMLESS = frozenset(
    # The origin of the file, and how weights are stored, used and returned.
    "_attn_implementation _attn_implementation_autoset _commit_hash _name_or_path name_or_path attn_implementation "
    "chunk_size_feed_forward dtype gradient_checkpointing output_attentions "
    "output_hidden_states output_past return_dict tf_legacy_loss torch_dtype torchscript transformers_version "
    "use_bfloat16 use_cache xla_device "
    # What it was fine-tuned for; the heads are known from the tensors.
    "finetuning_task label2id prefix task_specific_params tokenizer_class "
    # Token ids: padding is masked, and the tokenizer's files define the ids. Whether the output is tied is checked by
    # the tensors.
    "bos_token_id cls_token_id decoder_start_token_id eos_token_id eos_token_ids mask_token_id pad_token_id "
    "sep_token_id unk_token_id tie_word_embeddings "
    # A pooler of another code base, in the files of Google's Chinese and multilingual BERT.
    "pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type "
    # Of decoders, and how text is generated: transformers 2 to 4 wrote all of it into every file.
    "cross_attention_hidden_size tie_encoder_decoder "
    "bad_words_ids begin_suppress_tokens diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size "
    "exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id length_penalty max_length min_length "
    "no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_scores remove_invalid_values "
    "repetition_penalty return_dict_in_generate suppress_tokens temperature top_k top_p typical_p".split()
)


def write_config(config: AlbertConfig, heads: tuple[Head, ...], dtype: str) -> dict[str, Any]:
    """The content of config.json."""
    family = family_of(config)
    if family is None:
        # Hugging Face's error quotes an unknown model_type, so its user reads this sentence there.
        return {
            "model_type": "openalbert: the layers share their blocks in a way that transformers cannot express; "
            "load this folder with openalbert.load",
            OWN_SECTION: {"config": to_dict(config), "heads": [to_dict(head) for head in heads]},
        }
    values: dict[str, Any] = {"model_type": family, "architectures": [_architecture(family, heads)]}
    values |= {theirs: getattr(config, ours) for ours, theirs in KEYS[family].items()}
    values["hidden_act"] = next(theirs for theirs, ours in ACTIVATIONS.items() if ours == config.activation)
    if family == "albert":
        values |= {"num_hidden_groups": config.sharing.ffn, "inner_group_num": 1}
    values |= {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "dtype": dtype}
    for head in heads:
        if head.kind in PROBLEM_TYPES.values():
            values["problem_type"] = next(theirs for theirs, ours in PROBLEM_TYPES.items() if ours == head.kind)
        if head.kind in PROBLEM_TYPES.values() or head.kind == "tagging":
            labels = head.labels or UNNAMED_VALUE
            values["id2label"] = {str(number): label for number, label in enumerate(labels)}
            values["label2id"] = {label: number for number, label in enumerate(labels)}
    return values


def _architecture(family: Family, heads: tuple[Head, ...]) -> str:
    kinds = [head.kind for head in heads]
    name = "Albert" if family == "albert" else "Bert"
    if not kinds:
        return name + "Model"
    if "masked_lm" in kinds and "sentence_order" in kinds:
        return name + "ForPreTraining"
    return name + ARCHITECTURES.get(kinds[0], "ForSequenceClassification")


def _own_section(values: dict[str, Any], where: str) -> dict[str, Any]:
    section = values[OWN_SECTION]
    if not isinstance(section, dict):
        raise UserError(f"{where}: the section '{OWN_SECTION}' is {section!r}: a JSON object was expected")
    return section


def read_config(values: dict[str, Any], where: str) -> AlbertConfig:
    """Our configuration for a config.json of Hugging Face or of openalbert."""
    if OWN_SECTION in values:
        return from_dict(_own_section(values, where).get("config"), AlbertConfig, where)
    model_type = values.get("model_type")
    if model_type is None:
        raise UserError(
            f"{where}: there is no model_type: add one, 'albert' or 'bert', if this model is one of the two"
        )
    if model_type not in ("albert", "bert"):
        raise UserError(f"{where}: model_type is {model_type!r}, but only 'albert' and 'bert' can be read here")
    family = cast(Family, model_type)
    check_keys(values, family, where)
    ours: dict[str, Any] = {}
    for name, key in KEYS[family].items():
        value = values.get(key)
        if value is None and key == "classifier_dropout":
            value = values.get("hidden_dropout_prob")  # the fallback of their BERT
        if value is None and name in ("classifier_dropout", "initializer_range", "layer_norm_epsilon"):
            continue  # transformers 5 omits its defaults, which are the paper's
        if value is None:
            raise UserError(f"{where}: the key '{key}' is missing")
        ours[name] = _number(value, key, isinstance(getattr(AlbertConfig(), name), float), where)
    activation = values.get("hidden_act")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise UserError(f"{where}: hidden_act is {activation!r}: {suggestion(str(activation), ACTIVATIONS)}")
    if family == "bert":
        ours["embedding_size"] = ours["hidden_size"]
        groups = ours["num_layers"]
    else:
        groups = _number(values.get("num_hidden_groups", 1), "num_hidden_groups", False, where)
    ours |= {"activation": ACTIVATIONS[activation], "sharing": to_dict(Sharing(groups, groups))}
    return from_dict(ours, AlbertConfig, where)


def check_keys(values: dict[str, Any], family: Family, where: str) -> None:
    """Refuse keys that change the computation in a way that is not supported; warn about unknown ones."""
    for key, only in ONLY.items():
        value = values.get(key)
        if value is not None and value != only.value and not (value in ([], {}) and only.value in ([], {})):
            raise UserError(
                f"{where}: {key} is {value!r}, which means {only.otherwise}: only {only.value!r} is read, "
                "so this model cannot be used here"
            )
    read = [*KEYS[family].values(), *_READ_OTHERWISE, *(["num_hidden_groups"] if family == "albert" else [])]
    unknown = [key for key in values if key not in read and key not in ONLY and key not in HARMLESS]
    if unknown:
        known = [key for key in read if key not in values]
        named = ", ".join(f"'{key}'{_nearest(key, known)}" for key in unknown)
        keys, they = ("key", "it does") if len(unknown) == 1 else ("keys", "they do")
        sentence = f"{where}: ignored unknown {keys} {named}: check that {they} not change what the model computes"
        warnings.warn(sentence, InputWarning, stacklevel=2)


def _nearest(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.8)
    return f" (did you mean '{near[0]}'?)" if near else ""


def _number(value: Any, key: str, may_be_float: bool, where: str) -> Any:
    if type(value) is int or (may_be_float and type(value) is float):
        return value
    raise UserError(f"{where}: {key} is {value!r}: a {'' if may_be_float else 'whole '}number was expected")


def read_heads(values: dict[str, Any], tensors: Iterable[str], where: str) -> tuple[Head, ...]:
    """The heads of a folder: from the tensors that are there, and their description in config.json."""
    if OWN_SECTION in values:
        heads_there = _own_section(values, where).get("heads")
        if not isinstance(heads_there, list):
            raise UserError(f"{where}: {OWN_SECTION}.heads is {heads_there!r}: a list was expected")
        return tuple(from_dict(head, Head, where) for head in heads_there)
    names = set(tensors)
    heads = []
    if names & {"predictions.bias", "predictions.decoder.bias", "cls.predictions.bias", "cls.predictions.decoder.bias"}:
        heads.append(Head("masked_lm"))
    if names & {"sop_classifier.classifier.weight", "cls.seq_relationship.weight"}:
        heads.append(Head("sentence_order"))
    if "classifier.weight" in names:
        heads.append(_classifier(values, where))
    if "qa_outputs.weight" in names:
        heads.append(Head("span"))
    if "answerability.weight" in names:
        heads.append(Head("answerability"))
    return tuple(heads)


def _classifier(values: dict[str, Any], where: str) -> Head:
    architectures = str(values.get("architectures"))
    if "ForMultipleChoice" in architectures:
        return Head("multiple_choice")
    names = values.get("id2label") or _numbered_labels(values, where)
    if not isinstance(names, dict) or set(names) != {str(number) for number in range(len(names))}:
        raise UserError(f'{where}: id2label is {names!r}: a name for each class was expected, counted from "0"')
    labels = tuple(str(names[str(number)]) for number in range(len(names)))
    if "ForTokenClassification" in architectures:
        return Head("tagging", labels)
    problem = values.get("problem_type") or ("regression" if len(labels) == 1 else "single_label_classification")
    if not isinstance(problem, str) or problem not in PROBLEM_TYPES:
        raise UserError(f"{where}: problem_type is {problem!r}: {suggestion(str(problem), PROBLEM_TYPES)}")
    return Head(PROBLEM_TYPES[problem], () if labels == UNNAMED_VALUE else labels)


def _numbered_labels(values: dict[str, Any], where: str) -> dict[str, str]:
    """As in transformers where a file gives no names: `num_labels` labels, or two."""
    key = next((key for key in ("num_labels", "_num_labels") if values.get(key) is not None), None)
    count = 2 if key is None else _number(values[key], key, False, where)
    return {str(number): f"LABEL_{number}" for number in range(count)}
