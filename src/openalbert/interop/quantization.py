"""Quantization: the weights of exported graphs as 8-bit integers with a scale a row, or in fp32; each stored once."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Float32, Int8

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

WEIGHTS_FILE = "weights.bin"
SCALE = ".scale"  # after the name of a matrix
ALIGNMENT = 64  # bytes: weights are used where they lie in the mapped file
Part = Literal["embedding", "attention", "up", "down", "heads"]
PARTS: tuple[Part, ...] = ("embedding", "attention", "up", "down", "heads")


def part_of(parameter: str) -> Part:
    """The part of the model that a weight matrix belongs to."""
    if parameter.startswith("encoder.embedding."):
        return "embedding"
    if parameter.startswith("encoder.attention."):
        return "attention"
    if parameter.startswith("encoder.ffn."):
        return "up" if ".up." in parameter else "down"
    return "heads"


def quantize(matrix: Float32[np.ndarray, "rows columns"]) -> tuple[Int8[np.ndarray, "rows columns"], np.ndarray]:
    """Signed 8-bit integers and the scale of each row. Symmetric, so that there is no zero point."""
    scale = np.abs(matrix).max(1, keepdims=True) / np.float32(127)
    scale[scale < np.finfo(np.float32).tiny] = 1  # a row of zeros, or of numbers too small to divide by
    return np.rint(matrix / scale).astype(np.int8), scale[:, 0]


class Weights:
    """The weights of all graphs of an export. Each is stored once, in the order in which it was first asked for."""

    def __init__(self, parameters: Mapping[str, np.ndarray], int8: bool, keep: Sequence[Part] = ()) -> None:
        self._parameters, self._int8, self._keep = parameters, int8, frozenset(keep)
        self._arrays: dict[str, np.ndarray] = {}
        self._offsets: dict[str, int] = {}
        self._end = 0

    def is_quantized(self, name: str) -> bool:
        """Whether a parameter is stored in 8 bits: every matrix that is not kept is."""
        return self._int8 and self._parameters[name].ndim == 2 and part_of(name) not in self._keep

    def tensor(self, name: str, *, transposed: bool = False) -> "TensorProto":
        """A parameter in fp32."""
        array = self._parameters[name]
        return self._stored(name, array.T if transposed else array)

    def quantized(self, name: str, *, transposed: bool = False) -> tuple["TensorProto", "TensorProto"]:
        """A matrix in 8 bits with the scales of its rows, which are the outputs of a linear map."""
        numbers, scale = quantize(self._parameters[name])
        return self._stored(name, numbers.T if transposed else numbers), self._stored(name + SCALE, scale)

    @property
    def num_parameters(self) -> int:
        """How many parameters are stored; those of equal layers count once."""
        return sum(array.size for name, array in self._arrays.items() if not name.endswith(SCALE))

    def content(self) -> bytes:
        """The content of the file."""
        data = bytearray(self._end)
        for name, array in self._arrays.items():
            start = self._offsets[name]
            data[start : start + array.nbytes] = array.tobytes()
        return bytes(data)

    def _stored(self, name: str, array: np.ndarray) -> "TensorProto":
        from onnx import TensorProto, helper

        if name not in self._arrays:
            self._arrays[name] = np.ascontiguousarray(array)
            self._offsets[name] = -(-self._end // ALIGNMENT) * ALIGNMENT
            self._end = self._offsets[name] + array.nbytes
        tensor = TensorProto(name=name, dims=array.shape, data_location=TensorProto.EXTERNAL)
        tensor.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
        place = {"location": WEIGHTS_FILE, "offset": self._offsets[name], "length": array.nbytes}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        return tensor


def check_quantized(graphs: "Iterable[ModelProto]", keep: Sequence[Part]) -> None:
    """Assert that every matrix of an int8 model is stored in 8 bits, but for those that are kept."""
    from onnx import TensorProto

    for graph in graphs:
        for tensor in graph.graph.initializer:
            is_kept = part_of(tensor.name) in keep
            assert len(tensor.dims) < 2 or is_kept or tensor.data_type == TensorProto.INT8, tensor.name
