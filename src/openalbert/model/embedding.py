"""Factorized embedding (section 3.1 of the paper): V x H becomes V x E and E x H."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from openalbert.model.config import AlbertConfig


class FactorizedEmbedding(nn.Module):
    """Word, position and segment embeddings and their layer norm have size E; one linear map takes them to H.

    Where E = H there is no map: this is BERT's embedding.
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.word = _table(config.vocab_size, config.embedding_size)
        self.position = _table(config.max_positions, config.embedding_size)
        self.segment = _table(config.num_segments, config.embedding_size)
        self.norm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_epsilon)
        # As in Google's code, dropout comes before the map, and there is none after it.
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.map = nn.Linear(config.embedding_size, config.hidden_size) if config.maps_embedding else nn.Identity()

    def forward(
        self, ids: Int[Tensor, "*tokens"], segments: Int[Tensor, "*tokens"], positions: Int[Tensor, "*#tokens"]
    ) -> Float[Tensor, "*tokens hidden"]:
        """Embed tokens."""
        embedded = self.word(ids) + self.position(positions) + self.segment(segments)
        mapped: Tensor = self.map(self.dropout(self.norm(embedded)))
        return mapped


def _table(rows: int, size: int) -> nn.Embedding:
    """An embedding that the model will initialize: torch's own initialization is slow and loads its compiler."""
    table: nn.Embedding = nn.Embedding.from_pretrained(torch.empty(rows, size), freeze=False)
    return table
