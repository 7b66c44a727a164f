"""Parameter names: ours and those of Hugging Face's ALBERT and BERT, as tables that are read in both directions."""

from dataclasses import dataclass
from typing import Literal

from openalbert.model.config import AlbertConfig, Head, block_of_layer

Family = Literal["albert", "bert"]

# Modules: ours on the left, theirs on the right; {block} is the number of a shared block, {third} stands for query, key
# and value, which are three thirds of one matrix here and three matrices there.
ALBERT = {
    "encoder.embedding.word": "albert.embeddings.word_embeddings",
    "encoder.embedding.position": "albert.embeddings.position_embeddings",
    "encoder.embedding.segment": "albert.embeddings.token_type_embeddings",
    "encoder.embedding.norm": "albert.embeddings.LayerNorm",
    "encoder.embedding.map": "albert.encoder.embedding_hidden_mapping_in",
    "encoder.attention.{block}.qkv": "albert.encoder.albert_layer_groups.{block}.albert_layers.0.attention.{third}",
    "encoder.attention.{block}.output": "albert.encoder.albert_layer_groups.{block}.albert_layers.0.attention.dense",
    "encoder.attention.{block}.norm": "albert.encoder.albert_layer_groups.{block}.albert_layers.0.attention.LayerNorm",
    "encoder.ffn.{block}.up": "albert.encoder.albert_layer_groups.{block}.albert_layers.0.ffn",
    "encoder.ffn.{block}.down": "albert.encoder.albert_layer_groups.{block}.albert_layers.0.ffn_output",
    "encoder.ffn.{block}.norm": "albert.encoder.albert_layer_groups.{block}.albert_layers.0.full_layer_layer_norm",
    "encoder.pooler": "albert.pooler",
    "heads.masked_lm.dense": "predictions.dense",
    "heads.masked_lm.norm": "predictions.LayerNorm",
    "heads.masked_lm": "predictions",
    "heads.sentence_order.dense": "sop_classifier.classifier",
}
BERT = {
    "encoder.embedding.word": "bert.embeddings.word_embeddings",
    "encoder.embedding.position": "bert.embeddings.position_embeddings",
    "encoder.embedding.segment": "bert.embeddings.token_type_embeddings",
    "encoder.embedding.norm": "bert.embeddings.LayerNorm",
    "encoder.attention.{block}.qkv": "bert.encoder.layer.{block}.attention.self.{third}",
    "encoder.attention.{block}.output": "bert.encoder.layer.{block}.attention.output.dense",
    "encoder.attention.{block}.norm": "bert.encoder.layer.{block}.attention.output.LayerNorm",
    "encoder.ffn.{block}.up": "bert.encoder.layer.{block}.intermediate.dense",
    "encoder.ffn.{block}.down": "bert.encoder.layer.{block}.output.dense",
    "encoder.ffn.{block}.norm": "bert.encoder.layer.{block}.output.LayerNorm",
    "encoder.pooler": "bert.pooler.dense",
    "heads.masked_lm.dense": "cls.predictions.transform.dense",
    "heads.masked_lm.norm": "cls.predictions.transform.LayerNorm",
    "heads.masked_lm": "cls.predictions",
    "heads.sentence_order.dense": "cls.seq_relationship",
}
# Task heads have the same names in both families. Answerability is ours only.
TASK_HEADS = {
    "heads.classification.dense": "classifier",
    "heads.regression.dense": "classifier",
    "heads.multi_label.dense": "classifier",
    "heads.multiple_choice.dense": "classifier",
    "heads.span.dense": "qa_outputs",
    "heads.tagging.dense": "classifier",
    "heads.answerability.dense": "answerability",
}
THIRDS = ("query", "key", "value")
ONLY_WEIGHT = ("encoder.embedding.word", "encoder.embedding.position", "encoder.embedding.segment")
ONLY_BIAS = ("heads.masked_lm",)
EMBEDDING_MAP = ALBERT["encoder.embedding.map"]

# What their files may hold besides the parameters: copies of tied tensors, and buffers.
TIED = {
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
BUFFERS = ("albert.embeddings.position_ids", "bert.embeddings.position_ids")


@dataclass(frozen=True)
class Pair:
    """A tensor of theirs and its place in ours: a whole parameter, or one third of a stacked one."""

    ours: str
    theirs: str
    third: int | None = None


def family_of(config: AlbertConfig) -> Family | None:
    """The architecture of Hugging Face that can express a configuration, if any."""
    groups = config.sharing.ffn
    if config.sharing.attention != groups:
        return None  # their groups share attention and feed-forward blocks alike
    if config.embedding_size == config.hidden_size and groups == config.num_layers and not config.maps_embedding:
        return "bert"
    # Their rule for the group of a layer uses floating-point division, which may give another group than ours.
    layers = range(config.num_layers)
    their_groups = [int(layer / (config.num_layers / groups)) for layer in layers]
    same = their_groups == [block_of_layer(layer, groups, config.num_layers) for layer in layers]
    return "albert" if same else None


def name_pairs(family: Family, config: AlbertConfig, heads: tuple[Head, ...]) -> list[Pair]:
    """Every parameter of a model with its tensors in Hugging Face's naming."""
    kinds = {head.kind for head in heads}
    pairs = []
    for ours, theirs in ((ALBERT if family == "albert" else BERT) | TASK_HEADS).items():
        if ours.startswith("heads.") and ours.split(".")[1] not in kinds:
            continue
        if ours == "encoder.embedding.map" and not config.maps_embedding:
            continue
        blocks = range(config.sharing.ffn) if "{block}" in ours else range(1)
        thirds = range(3) if "{third}" in theirs else (None,)
        kinds_of_tensor = ("weight",) if ours in ONLY_WEIGHT else ("bias",) if ours in ONLY_BIAS else ("weight", "bias")
        for block in blocks:
            for third in thirds:
                name = theirs.format(block=block, third=None if third is None else THIRDS[third])
                for tensor in kinds_of_tensor:
                    pairs.append(Pair(f"{ours.format(block=block)}.{tensor}", f"{name}.{tensor}", third))
    return pairs
