"""The keys of Hugging Face's config.json: which are read, which cannot matter, and which mean another computation.

Everything else is unknown: files on the hub carry keys of many code bases, so it is ignored with a warning.
"""

import difflib
import warnings
from dataclasses import dataclass
from typing import Any

from openalbert.errors import InputWarning, UserError
from openalbert.interop.names import Family

# What both of their families call our settings.
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
# Read too, but not one for one: the activation, the groups of layers, and what they say of the heads.
_READ_OTHERWISE = ("hidden_act", "model_type", "architectures", "id2label", "problem_type", "num_labels", "_num_labels")


@dataclass(frozen=True)
class Only:
    """The one value of a key under which the model computes what ours does."""

    value: Any
    otherwise: str
    """What any other value means."""


# Keys that stayed from Google's unpublished experiments. All published files have these values; neither Google's code
# nor transformers knows others.
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
# Null, and for a table or a list an empty one, says the same as the value.
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

# Keys that cannot change what an encoder computes, whatever they say.
HARMLESS = frozenset(
    # Where the file comes from, and how the weights are stored, computed with and handed out.
    "_attn_implementation _attn_implementation_autoset _commit_hash _name_or_path name_or_path attn_implementation "
    "chunk_size_feed_forward dtype gradient_checkpointing output_attentions "
    "output_hidden_states output_past return_dict tf_legacy_loss torch_dtype torchscript transformers_version "
    "use_bfloat16 use_cache xla_device "
    # What it was fine-tuned for, in words; the heads are read off the tensors.
    "finetuning_task label2id prefix task_specific_params tokenizer_class "
    # Numbers of tokens: padding is masked, and the tokenizer's files say which is which. That the output is tied to the
    # input is checked by the tensors.
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


def check_keys(values: dict[str, Any], family: Family, where: str) -> None:
    """Refuse what changes the computation and cannot be honoured; warn of what is unknown."""
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
    """Which key was meant, if it is a misspelt one that is missing."""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.8)
    return f" (did you mean '{near[0]}'?)" if near else ""
