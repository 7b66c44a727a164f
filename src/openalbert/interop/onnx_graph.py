"""ALBERT as ONNX graphs: its embedding, its layers, its heads, and all of it in one.

They use ONNX's own operators only, in the forms that ONNX Runtime computes fastest (docs/decisions/onnx.md).
All graphs of an export refer to one file of weights (quantization.py).
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from openalbert.errors import UserError
from openalbert.interop.quantization import Weights
from openalbert.model.config import TOKEN_HEADS, AlbertConfig, Head, block_of_layer

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

OPSET = 23  # the first with Attention and RMSNormalization
IR_VERSION = 11
Block = tuple[int, int]
"""The numbers of a layer's attention block and of its feed-forward block."""
IDS, MASK, SEGMENTS = "input_ids", "attention_mask", "token_type_ids"
HIDDEN, POOLED = "last_hidden_state", "pooler_output"
SCORE_TOKENS = ("masked_lm", *TOKEN_HEADS)
"""The heads that score tokens; the others score the pooled [CLS]."""


def import_onnx() -> None:
    """Check that ONNX is installed."""
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise UserError("ONNX export needs: pip install 'openalbert[onnx]'") from None


class Graph:
    """Nodes and weights of a graph, or of the body of a loop in it. Its methods add nodes and return their outputs."""

    def __init__(self, weights: Weights, outer: "Graph | None" = None) -> None:
        self.weights = weights
        self.nodes: list[NodeProto] = []
        # The body of a loop uses the weights of the graph around it.
        self.initializers: dict[str, TensorProto] = outer.initializers if outer else {}
        self._numbers: Iterator[int] = outer._numbers if outer else itertools.count()

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        """A node with one output."""
        return self.split_op(kind, 1, *inputs, **attributes)[0]

    def split_op(self, kind: str, count: int, *inputs: str, **attributes: object) -> list[str]:
        """A node with several outputs."""
        from onnx import helper

        name = f"{kind}_{next(self._numbers)}"
        outputs = [name] if count == 1 else [f"{name}_{number}" for number in range(count)]
        self.nodes.append(helper.make_node(kind, inputs, outputs, name=name, **attributes))
        return outputs

    def name(self, value: str, name: str) -> None:
        """Give a value the name of an output of the graph."""
        from onnx import helper

        self.nodes.append(helper.make_node("Identity", [value], [name], name=f"name_{name}"))

    def constant(self, value: object) -> str:
        """A small constant, stored in the graph itself."""
        from onnx import numpy_helper

        array = np.asarray(value, None if isinstance(value, np.ndarray) else np.int64)
        name = f"constant_{array.dtype}_{'_'.join(map(str, array.flatten()))}_{array.ndim}"
        self.initializers.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def weight(self, name: str, *, transposed: bool = False) -> str:
        """A parameter in fp32."""
        return self._add(self.weights.tensor(name, transposed=transposed))

    def _add(self, tensor: "TensorProto") -> str:
        name = str(tensor.name)
        self.initializers[name] = tensor
        return name

    def linear(self, x: str, name: str) -> str:
        """A linear map with its bias; `name` is the module's."""
        return self.op("Add", self.product(x, f"{name}.weight"), self.weight(f"{name}.bias"))

    def product(self, x: str, name: str) -> str:
        """A vector of each token times a matrix, which is stored as torch does: outputs by inputs, transposed here."""
        if not self.weights.is_quantized(name):
            return self.op("MatMul", x, self.weight(name, transposed=True))
        numbers, scale = self.weights.quantized(name, transposed=True)
        return self._integer_product(x, self._add(numbers), self._add(scale))

    def tied_product(self, x: str, name: str) -> str:
        """The same with a table that is stored for lookups."""
        if not self.weights.is_quantized(name):
            return self.op("MatMul", x, self.op("Transpose", self.weight(name), perm=[1, 0]))
        numbers, scale = self.weights.quantized(name)
        turned = self.op("Transpose", self._add(numbers), perm=[1, 0])
        return self._integer_product(x, turned, self._add(scale))

    def _integer_product(self, x: str, numbers: str, scale: str) -> str:
        """A product of 8-bit integers; that of `x` are found at run time. ONNX Runtime fuses these nodes into one."""
        from onnx import TensorProto

        x_numbers, x_scale, x_zero = self.split_op("DynamicQuantizeLinear", 3, x)
        sums = self.op("MatMulInteger", x_numbers, numbers, x_zero)
        as_floats = self.op("Cast", sums, to=TensorProto.FLOAT)
        return self.op("Mul", as_floats, self.op("Mul", x_scale, scale))

    def rows_of_table(self, name: str, index: str) -> str:
        """Rows of an embedding table."""
        from onnx import TensorProto

        if not self.weights.is_quantized(name):
            return self.op("Gather", self.weight(name), index, axis=0)
        numbers, scale = (self._add(tensor) for tensor in self.weights.quantized(name))
        found = self.op("Cast", self.op("Gather", numbers, index, axis=0), to=TensorProto.FLOAT)
        scales = self.op("Unsqueeze", self.op("Gather", scale, index, axis=0), self.constant([-1]))
        return self.op("Mul", found, scales)

    def norm(self, x: str, name: str, config: AlbertConfig) -> str:
        """Layer norm. Centred first, for ONNX Runtime's RMSNormalization is seven times as fast as its layer norm."""
        centred = self.op("Sub", x, self.op("ReduceMean", x, self.constant([-1])))
        gain, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        epsilon = config.layer_norm_epsilon
        return self.op("Add", self.op("RMSNormalization", centred, gain, axis=-1, epsilon=epsilon), bias)

    def activate(self, x: str, config: AlbertConfig) -> str:
        """The nonlinearity."""
        if config.activation == "relu":
            return self.op("Relu", x)
        return self.op("Gelu", x, approximate="tanh" if config.activation == "gelu_tanh" else "none")


def embed(graph: Graph, config: AlbertConfig) -> str:
    """The first hidden states of tokens."""
    length = graph.op("Squeeze", graph.op("Shape", IDS, start=1, end=2))
    positions = graph.op("Range", graph.constant(0), length, graph.constant(1))
    words = graph.rows_of_table("encoder.embedding.word.weight", IDS)
    places = graph.rows_of_table("encoder.embedding.position.weight", positions)
    segments = graph.rows_of_table("encoder.embedding.segment.weight", SEGMENTS)
    embedded = graph.op("Add", graph.op("Add", words, places), segments)
    normed = graph.norm(embedded, "encoder.embedding.norm", config)
    return graph.linear(normed, "encoder.embedding.map") if config.maps_embedding else normed


def attention_mask(graph: Graph, like: str) -> str:
    """The mask as attention takes it: batch x 1 x queries x keys; there are as many queries as rows in `like`."""
    from onnx import TensorProto

    keys = graph.op("Unsqueeze", graph.op("Cast", MASK, to=TensorProto.BOOL), graph.constant([1, 2]))
    queries = graph.op("Shape", like, start=1, end=2)
    shape = graph.op("Concat", graph.constant([1, 1]), queries, graph.constant([1]), axis=0)
    return graph.op("Expand", keys, shape)


def run_layer(graph: Graph, config: AlbertConfig, block: Block, hidden: str, mask: str, rows: str | None = None) -> str:
    """One layer; with `rows` (batch x rows), only these tokens of each sequence are computed."""
    attention, ffn = f"encoder.attention.{block[0]}", f"encoder.ffn.{block[1]}"
    qkv = graph.linear(hidden, f"{attention}.qkv")
    query, key, value = graph.split_op("Split", 3, qkv, axis=-1, num_outputs=3)
    if rows is not None:
        index = graph.op("Unsqueeze", rows, graph.constant([-1]))
        query, hidden = (graph.op("GatherND", one, index, batch_dims=1) for one in (query, hidden))
    heads = config.num_heads
    mixed = graph.op("Attention", query, key, value, mask, q_num_heads=heads, kv_num_heads=heads)
    added = graph.op("Add", graph.linear(mixed, f"{attention}.output"), hidden)
    hidden = graph.norm(added, f"{attention}.norm", config)
    wide = graph.activate(graph.linear(hidden, f"{ffn}.up"), config)
    added = graph.op("Add", graph.linear(wide, f"{ffn}.down"), hidden)
    return graph.norm(added, f"{ffn}.norm", config)


def pool(graph: Graph, first: str) -> str:
    """The pooled [CLS]."""
    return graph.op("Tanh", graph.linear(first, "encoder.pooler"))


def score(graph: Graph, config: AlbertConfig, head: Head, vectors: str) -> str:
    """The logits of a head: of hidden states, or of pooled ones."""
    name = f"heads.{head.kind}"
    if head.kind != "masked_lm":
        return graph.linear(vectors, f"{name}.dense")
    normed = graph.norm(graph.activate(graph.linear(vectors, f"{name}.dense"), config), f"{name}.norm", config)
    return graph.op("Add", graph.tied_product(normed, "encoder.embedding.word.weight"), graph.weight(f"{name}.bias"))


# Whole graphs, which are the files of an export.


def embedding_graph(weights: Weights, config: AlbertConfig) -> "ModelProto":
    """Token ids and segments to hidden states."""
    graph = Graph(weights)
    graph.name(embed(graph, config), "hidden")
    return _model(graph, "embedding", [_tokens(IDS), _tokens(SEGMENTS)], [_hidden("hidden", config)])


def layer_graph(weights: Weights, config: AlbertConfig, block: Block) -> "ModelProto":
    """Hidden states to hidden states."""
    graph = Graph(weights)
    graph.name(run_layer(graph, config, block, "hidden", attention_mask(graph, MASK)), "next")
    return _model(graph, "layer", [_hidden("hidden", config), _tokens(MASK)], [_hidden("next", config)])


def rows_graph(weights: Weights, config: AlbertConfig, block: Block) -> "ModelProto":
    """Hidden states to those of some rows of each sequence."""
    graph = Graph(weights)
    graph.name(run_layer(graph, config, block, "hidden", attention_mask(graph, "rows"), "rows"), "next")
    inputs = [_hidden("hidden", config), _tokens(MASK), _value("rows", "INT64", ["batch", "rows"])]
    return _model(graph, "layer", inputs, [_value("next", "FLOAT", ["batch", "rows", config.hidden_size])])


def pooler_graph(weights: Weights, config: AlbertConfig) -> "ModelProto":
    """The last hidden state of [CLS] to its pooled vector."""
    graph = Graph(weights)
    graph.name(pool(graph, "hidden"), "pooled")
    shape: list[str | int] = ["rows", config.hidden_size]
    return _model(graph, "pooler", [_value("hidden", "FLOAT", shape)], [_value("pooled", "FLOAT", shape)])


def head_graph(weights: Weights, config: AlbertConfig, head: Head) -> "ModelProto":
    """Vectors to logits: hidden states of tokens for heads that score tokens, pooled ones for the others."""
    graph = Graph(weights)
    graph.name(score(graph, config, head, "vectors"), "logits")
    inputs = [_value("vectors", "FLOAT", ["rows", config.hidden_size])]
    return _model(graph, head.kind, inputs, [_value("logits", "FLOAT", ["rows", _width(head, config)])])


def whole_graph(weights: Weights, config: AlbertConfig, heads: Sequence[Head], blocks: Sequence[Block]) -> "ModelProto":
    """Token ids to hidden states, the pooled ones and the logits of every head; `blocks` are those of each layer.

    Layers with one set of weights are a loop; others follow one another.
    """
    graph = Graph(weights)
    hidden = embed(graph, config)
    mask = attention_mask(graph, IDS)
    if len(set(blocks)) == 1:
        rounds, go_on = graph.constant(config.num_layers), graph.constant(np.array(True))
        hidden = graph.op("Loop", rounds, go_on, hidden, body=_body(graph, config, mask))
    else:
        for block in blocks:
            hidden = run_layer(graph, config, block, hidden, mask)
    pooled = pool(graph, graph.op("Gather", hidden, graph.constant(0), axis=1))
    graph.name(hidden, HIDDEN)
    graph.name(pooled, POOLED)
    outputs = [_hidden(HIDDEN, config), _value(POOLED, "FLOAT", ["batch", config.hidden_size])]
    for head in heads:
        of_tokens = head.kind in SCORE_TOKENS
        graph.name(score(graph, config, head, hidden if of_tokens else pooled), head.kind)
        shape: list[str | int] = ["batch", "length"] if of_tokens else ["batch"]
        shape.append(_width(head, config))
        outputs.append(_value(head.kind, "FLOAT", shape))
    return _model(graph, "albert", [_tokens(IDS), _tokens(MASK), _tokens(SEGMENTS)], outputs)


def blocks_of(config: AlbertConfig, parameters: Mapping[str, np.ndarray]) -> list[Block]:
    """The blocks of each layer. Of blocks with the same weights, as `finetune --trainable head` makes them, all layers
    use the first."""
    sharing, layers = config.sharing, config.num_layers
    attention, ffn = (
        _first_equal(parameters, f"encoder.{kind}.", count)
        for kind, count in (("attention", sharing.attention), ("ffn", sharing.ffn))
    )
    return [
        (
            attention[block_of_layer(layer, sharing.attention, layers)],
            ffn[block_of_layer(layer, sharing.ffn, layers)],
        )
        for layer in range(layers)
    ]


def _first_equal(parameters: Mapping[str, np.ndarray], prefix: str, count: int) -> list[int]:
    """For each block, the first one with the same weights."""
    names = [name.removeprefix(f"{prefix}0") for name in parameters if name.startswith(f"{prefix}0.")]

    def are_equal(one: int, other: int) -> bool:
        return all(
            np.array_equal(parameters[f"{prefix}{one}{name}"], parameters[f"{prefix}{other}{name}"]) for name in names
        )

    return [next(other for other in range(block + 1) if are_equal(other, block)) for block in range(count)]


def _body(outer: Graph, config: AlbertConfig, mask: str) -> "GraphProto":
    """One round of the loop over layers."""
    from onnx import helper

    graph = Graph(outer.weights, outer)
    graph.name("go_on", "still_go_on")
    graph.name(run_layer(graph, config, (0, 0), "hidden", mask), "next")
    inputs = [_value("layer", "INT64", []), _value("go_on", "BOOL", []), _hidden("hidden", config)]
    outputs = [_value("still_go_on", "BOOL", []), _hidden("next", config)]
    return helper.make_graph(graph.nodes, "layer", inputs, outputs)


def _width(head: Head, config: AlbertConfig) -> int:
    return config.vocab_size if head.kind == "masked_lm" else head.num_outputs


def _tokens(name: str) -> "ValueInfoProto":
    return _value(name, "INT64", ["batch", "length"])


def _hidden(name: str, config: AlbertConfig) -> "ValueInfoProto":
    return _value(name, "FLOAT", ["batch", "length", config.hidden_size])


def _value(name: str, kind: str, shape: Sequence[str | int]) -> "ValueInfoProto":
    from onnx import TensorProto, helper

    return helper.make_tensor_value_info(name, getattr(TensorProto, kind), shape)


def _model(
    graph: Graph, name: str, inputs: Sequence["ValueInfoProto"], outputs: Sequence["ValueInfoProto"]
) -> "ModelProto":
    from onnx import helper

    whole = helper.make_graph(graph.nodes, name, inputs, outputs, list(graph.initializers.values()))
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(whole, opset_imports=opsets, ir_version=IR_VERSION, producer_name="openalbert")
