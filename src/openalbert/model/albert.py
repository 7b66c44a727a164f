"""The complete model: encoder, heads, weight initialization, and validation of its input."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from openalbert.errors import UserError, suggestion
from openalbert.model.config import AlbertConfig, Head, HeadKind
from openalbert.model.encoder import AlbertEncoder, Encoded
from openalbert.model.heads import EXIT_KINDS, make_exits, make_head, score
from openalbert.model.packing import Layout, Packed, Padded


class AlbertModel(nn.Module):
    """An ALBERT (or BERT) with any number of heads."""

    def __init__(self, config: AlbertConfig, heads: Sequence[Head] = (), *, has_exits: bool = False) -> None:
        """`has_exits`: the first head gets a copy of its kind after every layer, for early exit."""
        super().__init__()
        kinds = [head.kind for head in heads]
        if len(set(kinds)) < len(kinds):
            raise UserError(f"a model has at most one head of each kind, but these were requested: {', '.join(kinds)}")
        self.config = config
        self.head_list = tuple(heads)
        self.encoder = AlbertEncoder(config)
        self.heads = nn.ModuleDict({head.kind: make_head(head, config) for head in heads})
        self.exits = make_exits(heads[0], config) if has_exits else None
        initialize(self, config.initializer_range)

    def encode(
        self,
        ids: Integer[Tensor, "batch length"],
        segments: Integer[Tensor, "batch length"] | None = None,
        mask: Bool[Tensor, "batch length"]
        | Integer[Tensor, "batch length"]
        | Float[Tensor, "batch length"]
        | None = None,
        *,
        depth: int | None = None,
        at: Integer[Tensor, "batch asked"] | None = None,
        all_states: bool = False,
    ) -> Encoded:
        """Encode a padded batch; `mask` is 1 (or true) for real tokens, None means that all are real."""
        check_batch(self.config, 2, ids, segments, mask, at)
        layout = Padded(None if mask is None else mask.bool(), self.encoder.attend_masked)
        return self._encode(ids, segments, layout, ids.shape[1], depth, at, all_states)

    def encode_packed(
        self,
        ids: Integer[Tensor, "tokens"],
        lengths: Sequence[int] | Integer[Tensor, "sequences"],
        segments: Integer[Tensor, "tokens"] | None = None,
        *,
        depth: int | None = None,
        at: Integer[Tensor, "asked"] | None = None,
        all_states: bool = False,
    ) -> Encoded:
        """Encode a packed batch: sequences of these lengths, concatenated in `ids` without padding."""
        check_batch(self.config, 1, ids, segments, None, at)
        lengths = lengths.tolist() if isinstance(lengths, Tensor) else lengths
        if sum(lengths) != ids.shape[0]:
            raise UserError(f"the lengths add up to {sum(lengths)} tokens, but ids has {ids.shape[0]}")
        layout = Packed.of(lengths, ids.device)
        return self._encode(ids, segments, layout, max(lengths), depth, at, all_states)

    def _encode(
        self,
        ids: Tensor,
        segments: Tensor | None,
        layout: Layout,
        length: int,
        depth: int | None,
        at: Tensor | None,
        all_states: bool,
    ) -> Encoded:
        if length > self.config.max_positions:
            raise UserError(
                f"a sequence has {length} tokens, but the model has {self.config.max_positions} positions: "
                "shorten it, or use a model with a larger max_positions"
            )
        ids = ids.long()  # the embedding takes only 32 and 64 bits, but token ids may come in 16
        segments = torch.zeros_like(ids) if segments is None else segments.long()
        encoded: Encoded = self.encoder(ids, segments, layout, depth=depth, at=at, all_states=all_states)
        return encoded

    def scores(self, kind: HeadKind, encoded: Encoded, depth: int | None = None) -> Float[Tensor, "..."]:
        """Apply one of the heads to an encoded batch; where there are exits, that of the depth of the encoding."""
        if kind not in self.heads:
            has = suggestion(kind, self.heads) if self.heads else "it has no heads"
            raise UserError(f"this model has no head '{kind}': {has}")
        depth, module = depth or self.config.num_layers, self.heads[kind]
        if self.exits is not None and kind in EXIT_KINDS and depth <= len(self.exits):
            module = self.exits[depth - 1]
        return score(module, encoded, self.encoder.embedding.word.weight)

    def depth_scores(self, encoded: Encoded) -> list[Float[Tensor, "sequences outputs"]]:
        """Logits of the first head after every layer: of the exits, then of the head itself. Needs `all_states`."""
        assert self.exits is not None
        assert encoded.pooled_states
        exits = [module(pooled) for module, pooled in zip(self.exits, encoded.pooled_states, strict=True)]
        return [*exits, self.scores(self.head_list[0].kind, encoded)]

    def num_parameters(self) -> int:
        """Number of parameters; shared ones count once."""
        return sum(parameter.numel() for parameter in self.parameters())


def initialize(model: nn.Module, initializer_range: float) -> None:
    """Initialize as Google does: truncated normal (cut at two standard deviations), biases 0, norms 1."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            bound = 2 * initializer_range
            nn.init.trunc_normal_(module.weight, std=initializer_range, a=-bound, b=bound)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


def check_batch(
    config: AlbertConfig,
    dimensions: int,
    ids: Tensor,
    segments: Tensor | None = None,
    mask: Tensor | None = None,
    at: Tensor | None = None,
) -> None:
    """Refuse a batch that cannot be encoded: padded ones have two dimensions, packed ones have one.

    Without this, the user would get an index error from deep inside the model.
    """
    form = "batch x length" if dimensions == 2 else "tokens"
    for name, tensor in (("ids", ids), ("segments", segments), ("mask", mask), ("at", at)):
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor):
            raise UserError(f"{name} is a {type(tensor).__name__}: a tensor was expected, torch.tensor makes one")
        if tensor.device != ids.device:
            raise UserError(f"{name} is on {tensor.device}, but ids is on {ids.device}: move one of them")
        if name != "mask" and (tensor.is_floating_point() or tensor.is_complex()):
            raise UserError(f"{name} holds {tensor.dtype}: whole numbers were expected")
    if ids.dim() != dimensions or ids.shape[-1] == 0:
        raise UserError(f"ids has shape {list(ids.shape)}, but {form} was expected, with at least one token")
    for name, tensor in (("segments", segments), ("mask", mask)):
        if tensor is not None and tensor.shape != ids.shape:
            raise UserError(f"{name} has shape {list(tensor.shape)}, but ids has {list(ids.shape)}: they must be equal")
    if at is not None and (at.dim() != dimensions or at.shape[:-1] != ids.shape[:-1]):
        raise UserError(
            f"at has shape {list(at.shape)}, but ids has {list(ids.shape)}: only the last number may differ"
        )
    # Checking values on a GPU would synchronize in every training step; there, the kernels detect ids out of range.
    if ids.device.type != "cpu" or torch.compiler.is_compiling():
        return
    _check_range("ids", ids, config.vocab_size, "the vocabulary has")
    _check_range("segments", segments, config.num_segments, "the number of segment types is")
    _check_range("at", at, ids.shape[-1], "the length is")
    if mask is not None and mask.dtype != torch.bool and not ((mask == 0) | (mask == 1)).all():
        raise UserError(
            "mask holds other numbers than 1 for real tokens and 0 for padding: an additive mask is not supported"
        )


def _check_range(name: str, tensor: Tensor | None, limit: int, what: str) -> None:
    if tensor is None or tensor.numel() == 0 or tensor.dtype == torch.bool:
        return
    lowest, highest = (int(number) for number in tensor.aminmax())
    if lowest < 0 or highest >= limit:
        raise UserError(
            f"{name} holds {lowest if lowest < 0 else highest}, but {what} {limit}: 0 to {limit - 1} will do"
        )
