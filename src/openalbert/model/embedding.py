"""Factorized embedding (section 3.1 of the paper): V x H becomes V x E and E x H."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from openalbert.model.config import AlbertConfig


class FactorizedEmbedding(nn.Module):
    """Word, position and segment embeddings and their layer norm live in E; one linear map takes them to H.

    Where E = H there is no map, and this is BERT's embedding.
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.word = _table(config.vocab_size, config.embedding_size)
        self.position = _table(config.max_positions, config.embedding_size)
        self.segment = _table(config.num_segments, config.embedding_size)
        self.norm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_epsilon)
        # Google drops out in E, before the map; nothing is dropped after it.
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.map = nn.Linear(config.embedding_size, config.hidden_size) if config.maps_embedding else nn.Identity()

    def forward(
        self, ids: Int[Tensor, "*tokens"], segments: Int[Tensor, "*tokens"], positions: Int[Tensor, "*#tokens"]
    ) -> Float[Tensor, "*tokens hidden"]:
        """Numbers become vectors of the hidden size."""
        embedded = self.word(ids) + self.position(positions) + self.segment(segments)
        mapped: Tensor = self.map(self.dropout(self.norm(embedded)))
        return mapped


def _table(rows: int, size: int) -> nn.Embedding:
    """An embedding whose weights the model will draw: torch's own draw is slow, and would load its compiler for it."""
    table: nn.Embedding = nn.Embedding.from_pretrained(torch.empty(rows, size), freeze=False)
    return table
