"""The heads: two for pretraining and those for tasks. Each returns one tensor of logits."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from openalbert.errors import UserError
from openalbert.model.config import AlbertConfig, Head, HeadKind
from openalbert.model.encoder import Encoded
from openalbert.model.kernels.cpu_linear import Linear, apply_linear
from openalbert.model.layer import activate

EXIT_KINDS: tuple[HeadKind, ...] = ("classification", "regression", "multi_label")


class MaskedLm(nn.Module):
    """H to E, nonlinearity, layer norm, then the tied word embedding as output matrix, plus a bias of size V.

    It scores every position it is given: pass the masked ones only.
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.dense = Linear(config.hidden_size, config.embedding_size)
        self.norm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_epsilon)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(
        self, hidden: Float[Tensor, "*asked hidden"], words: Float[Tensor, "vocabulary embedding"]
    ) -> Float[Tensor, "*asked vocabulary"]:
        """Logits over the vocabulary at every position given."""
        normed = self.norm(activate(self.dense(hidden), self.activation))
        if torch.compiler.is_dynamo_compiling() and torch.is_grad_enabled():
            # Here the bias is fused into the loss; within the product it costs two passes over all logits.
            return F.linear(normed, words).to(self.bias.dtype) + self.bias
        return apply_linear(normed, words, self.bias)


class OfSequence(nn.Module):
    """One or more logits per sequence, from its pooled [CLS]: classes, values, a choice, answerability."""

    def __init__(self, config: AlbertConfig, num_outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.dense = nn.Linear(config.hidden_size, num_outputs)

    def forward(self, pooled: Float[Tensor, "sequences hidden"]) -> Float[Tensor, "sequences outputs"]:
        """Logits of each sequence."""
        logits: Tensor = self.dense(self.dropout(pooled))
        return logits


class Span(nn.Module):
    """Start and end of an answer: two logits per token."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, 2)

    def forward(self, hidden: Float[Tensor, "*tokens hidden"]) -> Float[Tensor, "*tokens 2"]:
        """Logits of each token as first and as last token of the answer."""
        logits: Tensor = self.dense(hidden)
        return logits


class Tagging(nn.Module):
    """The label of each token: a logit per token and label."""

    def __init__(self, config: AlbertConfig, num_labels: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.dense = nn.Linear(config.hidden_size, num_labels)

    def forward(self, hidden: Float[Tensor, "*tokens hidden"]) -> Float[Tensor, "*tokens labels"]:
        """Logits of each token."""
        logits: Tensor = self.dense(self.dropout(hidden))
        return logits


def make_head(head: Head, config: AlbertConfig) -> nn.Module:
    """The module for a head."""
    if head.kind == "masked_lm":
        return MaskedLm(config)
    if head.kind == "span":
        return Span(config)
    if head.kind == "tagging":
        return Tagging(config, head.num_outputs)
    # As in Google's code, the sentence-order head has no dropout.
    dropout = 0.0 if head.kind == "sentence_order" else config.classifier_dropout
    return OfSequence(config, head.num_outputs, dropout)


def make_exits(head: Head, config: AlbertConfig) -> nn.ModuleList:
    """Heads for early exit, one after every layer but the last: each reads the pooled [CLS] of its depth.

    They share the model's pooler (PABEE, arXiv 2006.04152), so that each is one small matrix. At full depth the model's
    own head decides.
    """
    check_exit_kind(head.kind)
    return nn.ModuleList(make_head(head, config) for _ in range(config.num_layers - 1))


def check_exit_kind(kind: str) -> None:
    """Refuse exits where an example is not one decision about one sequence."""
    if kind not in EXIT_KINDS:
        raise UserError(
            f"early exit is for {', '.join(EXIT_KINDS)}, one decision for each text, and not for {kind}: leave out "
            "--exits; a smaller --depth can be chosen when predicting"
        )


def score(module: nn.Module, encoded: Encoded, words: Float[Tensor, "vocabulary embedding"]) -> Tensor:
    """Apply a head to an encoded batch."""
    if isinstance(module, MaskedLm):
        return module(encoded.hidden, words)  # type: ignore[no-any-return]
    return module(encoded.hidden if isinstance(module, Span | Tagging) else encoded.pooled)  # type: ignore[no-any-return]
