"""The tables of names: what our parameters are called in Hugging Face's ALBERT and BERT. Read in both directions."""

from dataclasses import dataclass
from typing import Literal

from openalbert.model.config import AlbertConfig, Head, block_of_layer

Family = Literal["albert", "bert"]

# Modules: ours on the left, theirs on the right; {part} is the number of a shared part, {third} marks query, key and
# value, which are the three thirds of one matrix here and three matrices there.
ALBERT = {
    "encoder.embedding.word": "albert.embeddings.word_embeddings",
    "encoder.embedding.position": "albert.embeddings.position_embeddings",
    "encoder.embedding.segment": "albert.embeddings.token_type_embeddings",
    "encoder.embedding.norm": "albert.embeddings.LayerNorm",
    "encoder.embedding.map": "albert.encoder.embedding_hidden_mapping_in",
    "encoder.attention.{part}.qkv": "albert.encoder.albert_layer_groups.{part}.albert_layers.0.attention.{third}",
    "encoder.attention.{part}.output": "albert.encoder.albert_layer_groups.{part}.albert_layers.0.attention.dense",
    "encoder.attention.{part}.norm": "albert.encoder.albert_layer_groups.{part}.albert_layers.0.attention.LayerNorm",
    "encoder.ffn.{part}.up": "albert.encoder.albert_layer_groups.{part}.albert_layers.0.ffn",
    "encoder.ffn.{part}.down": "albert.encoder.albert_layer_groups.{part}.albert_layers.0.ffn_output",
    "encoder.ffn.{part}.norm": "albert.encoder.albert_layer_groups.{part}.albert_layers.0.full_layer_layer_norm",
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
    "encoder.attention.{part}.qkv": "bert.encoder.layer.{part}.attention.self.{third}",
    "encoder.attention.{part}.output": "bert.encoder.layer.{part}.attention.output.dense",
    "encoder.attention.{part}.norm": "bert.encoder.layer.{part}.attention.output.LayerNorm",
    "encoder.ffn.{part}.up": "bert.encoder.layer.{part}.intermediate.dense",
    "encoder.ffn.{part}.down": "bert.encoder.layer.{part}.output.dense",
    "encoder.ffn.{part}.norm": "bert.encoder.layer.{part}.output.LayerNorm",
    "encoder.pooler": "bert.pooler.dense",
    "heads.masked_lm.dense": "cls.predictions.transform.dense",
    "heads.masked_lm.norm": "cls.predictions.transform.LayerNorm",
    "heads.masked_lm": "cls.predictions",
    "heads.sentence_order.dense": "cls.seq_relationship",
}
# Heads of tasks have the same names in both. They know no answerability: it stands under a name of ours.
TASK_HEADS = {
    "heads.classification.dense": "classifier",
    "heads.regression.dense": "classifier",
    "heads.multi_label.dense": "classifier",
    "heads.multiple_choice.dense": "classifier",
    "heads.span.dense": "qa_outputs",
    "heads.answerability.dense": "answerability",
}
THIRDS = ("query", "key", "value")
ONLY_WEIGHT = ("encoder.embedding.word", "encoder.embedding.position", "encoder.embedding.segment")
ONLY_BIAS = ("heads.masked_lm",)
EMBEDDING_MAP = ALBERT["encoder.embedding.map"]

# What their files may hold beside the parameters: copies of tied tensors, and buffers.
TIED = {
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
BUFFERS = ("albert.embeddings.position_ids", "bert.embeddings.position_ids")


@dataclass(frozen=True)
class Pair:
    """One tensor of theirs and where it lies in ours: a whole parameter, or one third of a stacked one."""

    ours: str
    theirs: str
    third: int | None = None


def family_of(config: AlbertConfig) -> Family | None:
    """Which of Hugging Face's architectures can express a configuration, if any."""
    groups = config.sharing.ffn
    if config.sharing.attention != groups:
        return None  # their groups share attention and feed-forward part alike
    if config.embedding_size == config.hidden_size and groups == config.num_layers and not config.maps_embedding:
        return "bert"
    # Their rule for the group of a layer divides floating-point numbers, which may land on another group than ours.
    layers = range(config.num_layers)
    their_groups = [int(layer / (config.num_layers / groups)) for layer in layers]
    same = their_groups == [block_of_layer(layer, groups, config.num_layers) for layer in layers]
    return "albert" if same else None


def name_pairs(family: Family, config: AlbertConfig, heads: tuple[Head, ...]) -> list[Pair]:
    """Every parameter of a model beside its tensors in Hugging Face's naming."""
    kinds = {head.kind for head in heads}
    pairs = []
    for ours, theirs in ((ALBERT if family == "albert" else BERT) | TASK_HEADS).items():
        if ours.startswith("heads.") and ours.split(".")[1] not in kinds:
            continue
        if ours == "encoder.embedding.map" and not config.maps_embedding:
            continue
        parts = range(config.sharing.ffn) if "{part}" in ours else range(1)
        thirds = range(3) if "{third}" in theirs else (None,)
        kinds_of_tensor = ("weight",) if ours in ONLY_WEIGHT else ("bias",) if ours in ONLY_BIAS else ("weight", "bias")
        for part in parts:
            for third in thirds:
                name = theirs.format(part=part, third=None if third is None else THIRDS[third])
                for tensor in kinds_of_tensor:
                    pairs.append(Pair(f"{ours.format(part=part)}.{tensor}", f"{name}.{tensor}", third))
    return pairs
