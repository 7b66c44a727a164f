"""Makes the checkpoints of this folder with TensorFlow, under the names that Google's ALBERT and BERT code gives.

Run with TensorFlow 2.x in an environment of its own: `python tests/golden/google/make.py`. Every weight follows from
its name and index by `values`, so that a test can compute all of them again; outputs.json holds what the models then
compute, by a plain writing-down of the maths of Google's modeling.py in float64.
"""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
PREFIX = "model.ckpt-best"

ALBERT = {
    "attention_probs_dropout_prob": 0,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0,
    "embedding_size": 8,
    "hidden_size": 16,
    "initializer_range": 0.02,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "num_hidden_groups": 1,
    "net_structure_type": 0,
    "gap_size": 0,
    "num_memory_blocks": 0,
    "inner_group_num": 1,
    "down_scale_factor": 1,
    "type_vocab_size": 2,
    "vocab_size": 50,
}
ALBERT_GROUPS = ALBERT | {"num_hidden_groups": 2}
BERT = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 16,
    "initializer_range": 0.02,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "type_vocab_size": 2,
    "vocab_size": 50,
}

IDS = [[2, 11, 49, 7, 30, 3, 21, 5, 4, 3], [2, 8, 4, 3, 44, 19, 3, 0, 0, 0]]
SEGMENTS = [[0, 0, 0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1, 0, 0, 0]]
MASK = [[1] * 10, [1] * 7 + [0] * 3]

Shapes = dict[str, tuple[int, ...]]


def values(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The float32 weights of a variable: a mixed-up function of its name (with its scope) and of each index."""
    index = np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64(zlib.crc32(name.encode()))
    mixed = (index * np.uint64(0x9E3779B1)) & np.uint64(0xFFFFFFFF)
    mixed = ((mixed ^ (mixed >> np.uint64(15))) * np.uint64(0x85EBCA77)) & np.uint64(0xFFFFFFFF)
    mixed ^= mixed >> np.uint64(13)
    centred = mixed.astype(np.float64) / 2**32 - 0.5
    around = 1.0 if name.endswith("gamma") else 0.0
    return (around + centred).astype(np.float32).reshape(shape)


def _dense(name: str, inputs: int, outputs: int) -> Shapes:
    return {f"{name}/kernel": (inputs, outputs), f"{name}/bias": (outputs,)}


def _norm(name: str, size: int) -> Shapes:
    return {f"{name}/beta": (size,), f"{name}/gamma": (size,)}


def _embeddings(config: dict[str, Any], size: int) -> Shapes:
    return {
        "bert/embeddings/word_embeddings": (config["vocab_size"], size),
        "bert/embeddings/token_type_embeddings": (config["type_vocab_size"], size),
        "bert/embeddings/position_embeddings": (config["max_position_embeddings"], size),
        **_norm("bert/embeddings/LayerNorm", size),
    }


def albert_encoder(config: dict[str, Any]) -> Shapes:
    """The variables of Google's AlbertModel."""
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    shapes = _embeddings(config, config["embedding_size"])
    shapes |= _dense("bert/encoder/embedding_hidden_mapping_in", config["embedding_size"], hidden)
    for group in range(config["num_hidden_groups"]):
        layer = f"bert/encoder/transformer/group_{group}/inner_group_0"
        for part in ("query", "key", "value"):
            shapes |= _dense(f"{layer}/attention_1/self/{part}", hidden, hidden)
        shapes |= _dense(f"{layer}/attention_1/output/dense", hidden, hidden)
        shapes |= _norm(f"{layer}/LayerNorm", hidden)
        shapes |= _dense(f"{layer}/ffn_1/intermediate/dense", hidden, ffn)
        shapes |= _dense(f"{layer}/ffn_1/intermediate/output/dense", ffn, hidden)
        shapes |= _norm(f"{layer}/LayerNorm_1", hidden)
    return shapes | _dense("bert/pooler/dense", hidden, hidden)


def bert_encoder(config: dict[str, Any]) -> Shapes:
    """The variables of Google's BertModel."""
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    shapes = _embeddings(config, hidden)
    for index in range(config["num_hidden_layers"]):
        layer = f"bert/encoder/layer_{index}"
        for part in ("query", "key", "value"):
            shapes |= _dense(f"{layer}/attention/self/{part}", hidden, hidden)
        shapes |= _dense(f"{layer}/attention/output/dense", hidden, hidden)
        shapes |= _norm(f"{layer}/attention/output/LayerNorm", hidden)
        shapes |= _dense(f"{layer}/intermediate/dense", hidden, ffn)
        shapes |= _dense(f"{layer}/output/dense", ffn, hidden)
        shapes |= _norm(f"{layer}/output/LayerNorm", hidden)
    return shapes | _dense("bert/pooler/dense", hidden, hidden)


def pretraining_heads(config: dict[str, Any]) -> Shapes:
    """Masked LM and the sentence loss."""
    hidden, size = config["hidden_size"], config.get("embedding_size", config["hidden_size"])
    return {
        **_dense("cls/predictions/transform/dense", hidden, size),
        **_norm("cls/predictions/transform/LayerNorm", size),
        "cls/predictions/output_bias": (config["vocab_size"],),
        "cls/seq_relationship/output_weights": (2, hidden),
        "cls/seq_relationship/output_bias": (2,),
    }


def with_slots(shapes: Shapes) -> Shapes:
    """The two running means that Google's LAMB and AdamW keep beside every weight."""
    return shapes | {f"{name}/{slot}": shape for name, shape in shapes.items() for slot in ("adam_m", "adam_v")}


def models() -> dict[str, tuple[str, dict[str, Any], Shapes]]:
    """Folder, configuration file, configuration and variables of every checkpoint of a model."""
    albert, pretraining = albert_encoder(ALBERT), albert_encoder(ALBERT) | pretraining_heads(ALBERT)
    groups = albert_encoder(ALBERT_GROUPS) | pretraining_heads(ALBERT_GROUPS)
    classifier = {"output_weights": (3, 16), "output_bias": (3,)}
    squad = {"cls/squad/output_weights": (2, 16), "cls/squad/output_bias": (2,)}
    return {
        "pretraining": ("albert_config.json", ALBERT, with_slots(pretraining)),
        "hub": ("albert_config.json", ALBERT, {f"module/{name}": shape for name, shape in pretraining.items()}),
        "classifier": ("albert_config.json", ALBERT, albert | classifier),
        "squad": ("albert_config.json", ALBERT, albert | squad),
        "groups": ("albert_config.json", ALBERT_GROUPS, groups),
        "bert": ("bert_config.json", BERT, bert_encoder(BERT) | pretraining_heads(BERT)),
    }


def outputs(config: dict[str, Any], weight: Callable[[str], Any]) -> dict[str, Any]:
    """Hidden states of every layer, pooled and both logits, as TensorFlow computes them in float64."""
    import tensorflow as tf

    def dense(x: Any, name: str) -> Any:
        return tf.einsum("...i,io->...o", x, weight(f"{name}/kernel")) + weight(f"{name}/bias")

    def norm(x: Any, name: str) -> Any:
        mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
        return (x - mean) / tf.sqrt(variance + 1e-12) * weight(f"{name}/gamma") + weight(f"{name}/beta")

    def gelu(x: Any) -> Any:
        return 0.5 * x * (1 + tf.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    def heads(x: Any) -> Any:
        shape = (x.shape[0], x.shape[1], config["num_attention_heads"], -1)
        return tf.transpose(tf.reshape(x, shape), (0, 2, 1, 3))

    def attention(x: Any, name: str) -> Any:
        query, key, value = (heads(dense(x, f"{name}/{part}")) for part in ("query", "key", "value"))
        scores = tf.matmul(query, key, transpose_b=True) / np.sqrt(query.shape[-1])
        scores += (1.0 - tf.constant(MASK, tf.float64)[:, None, None, :]) * -10000.0
        mixed = tf.transpose(tf.matmul(tf.nn.softmax(scores), value), (0, 2, 1, 3))
        return tf.reshape(mixed, x.shape)

    is_albert = "embedding_size" in config
    words = weight("bert/embeddings/word_embeddings")
    x = tf.gather(words, IDS) + tf.gather(weight("bert/embeddings/token_type_embeddings"), SEGMENTS)
    x = norm(x + weight("bert/embeddings/position_embeddings")[None, : len(IDS[0])], "bert/embeddings/LayerNorm")
    if is_albert:
        x = dense(x, "bert/encoder/embedding_hidden_mapping_in")
    hidden = [x]
    for index in range(config["num_hidden_layers"]):
        if is_albert:
            group = int(index / config["num_hidden_layers"] * config["num_hidden_groups"])
            layer = f"bert/encoder/transformer/group_{group}/inner_group_0"
            attended = dense(attention(x, f"{layer}/attention_1/self"), f"{layer}/attention_1/output/dense")
            x = norm(attended + x, f"{layer}/LayerNorm")
            inner = gelu(dense(x, f"{layer}/ffn_1/intermediate/dense"))
            x = norm(dense(inner, f"{layer}/ffn_1/intermediate/output/dense") + x, f"{layer}/LayerNorm_1")
        else:
            layer = f"bert/encoder/layer_{index}"
            attended = dense(attention(x, f"{layer}/attention/self"), f"{layer}/attention/output/dense")
            x = norm(attended + x, f"{layer}/attention/output/LayerNorm")
            inner = gelu(dense(x, f"{layer}/intermediate/dense"))
            x = norm(dense(inner, f"{layer}/output/dense") + x, f"{layer}/output/LayerNorm")
        hidden.append(x)
    pooled = tf.tanh(dense(x[:, 0], "bert/pooler/dense"))
    transform = "cls/predictions/transform"
    predicted = norm(gelu(dense(x, f"{transform}/dense")), f"{transform}/LayerNorm")
    masked_lm = tf.einsum("bse,ve->bsv", predicted, words) + weight("cls/predictions/output_bias")
    order = tf.matmul(pooled, weight("cls/seq_relationship/output_weights"), transpose_b=True)
    return {
        "hidden": tf.stack(hidden),
        "pooled": pooled,
        "masked_lm": masked_lm,
        "sentence_order": order + weight("cls/seq_relationship/output_bias"),
    }


def rounded(array: np.ndarray) -> list[Any]:
    """Nested lists with the shortest digits that read back as the same float32."""

    def shorten(value: Any) -> Any:
        return [shorten(item) for item in value] if isinstance(value, list) else float(str(np.float32(value)))

    return [shorten(item) for item in array.tolist()]


def save_model(folder: Path, config: dict[str, Any], shapes: Shapes, compute: bool) -> dict[str, Any] | None:
    """Write a checkpoint with TensorFlow's own saver, and give what the model computes."""
    import tensorflow.compat.v1 as tf

    with tf.Graph().as_default(), tf.Session() as session:
        variables = {name: tf.get_variable(name, initializer=values(name, shape)) for name, shape in shapes.items()}
        step = tf.get_variable("global_step", initializer=np.int64(125000), trainable=False)
        session.run(tf.global_variables_initializer())
        saver = tf.train.Saver([*variables.values(), step])
        saver.save(session, str(folder / PREFIX), write_meta_graph=False, write_state=False)
        if not compute:
            return None
        results = session.run(outputs(config, lambda name: tf.cast(variables[name], tf.float64)))
    return {name: rounded(array) for name, array in results.items()}


def save_kinds(folder: Path) -> None:
    """One checkpoint of two shards with every type of tensor, an empty one, a scalar, a text and a partitioned one."""
    import tensorflow.compat.v1 as tf

    numbers = values("numbers", (4, 3))
    with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        variables = []
        for index, kind in enumerate(("float16", "bfloat16", "float32", "float64", "int32", "int64", "bool")):
            with tf.device(f"/cpu:{index % 2}"):
                array = tf.cast(tf.constant(numbers) * (100 if "int" in kind else 1), kind)
                variables.append(tf.get_variable(kind, initializer=array, use_resource=False))
        with tf.device("/cpu:0"):
            variables.append(tf.get_variable("empty", initializer=np.zeros((0, 5), np.float32)))
            variables.append(tf.get_variable("scalar", initializer=np.float32(0.5)))
            variables.append(tf.get_variable("text", initializer=tf.constant(["some", "words"]), use_resource=False))
            parts = tf.get_variable(
                "partitioned", initializer=tf.constant(numbers), partitioner=tf.fixed_size_partitioner(2)
            )
        session.run(tf.global_variables_initializer())
        saver = tf.train.Saver([*variables, *parts], sharded=True)
        saver.save(session, str(folder / PREFIX), write_meta_graph=False, write_state=False)


def main() -> None:
    """Write every folder anew."""
    import tensorflow.compat.v1 as tf

    tf.disable_eager_execution()
    computed: dict[str, Any] = {"ids": IDS, "segments": SEGMENTS, "mask": MASK}
    for name, (config_file, config, shapes) in models().items():
        folder = HERE / name
        folder.mkdir(exist_ok=True)
        (folder / config_file).write_text(json.dumps(config, indent=2) + "\n")
        results = save_model(folder, config, shapes, compute=name in ("pretraining", "groups", "bert"))
        if results:
            computed[name] = results
    (HERE / "outputs.json").write_text(json.dumps(computed, separators=(",", ":")) + "\n")
    (HERE / "kinds").mkdir(exist_ok=True)
    save_kinds(HERE / "kinds")


if __name__ == "__main__":
    main()
