"""What the tests of the checkpoint bench and of visits have in common: options of tiny runs, and a tiny teacher."""

from pathlib import Path

from openalbert.interop import huggingface
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS, AlbertConfig
from openalbert.text.tokenizer import Tokenizer

# Narrow layers and short examples; numbers of layers, groups and depths are those of the real runs.
TINY = (
    "--model.hidden-size 32 --model.ffn-size 64 --model.num-heads 2 --model.embedding-size 16 --batch-size 8 "
    "--objective.max-length 32 --evaluation-examples 16 --evaluate-every 1000 --log-every 5"
).split()


def save_teacher(folder: Path, tokenizer: Tokenizer) -> None:
    """A model of random weights with this vocabulary."""
    config = AlbertConfig(
        vocab_size=tokenizer.vocab_size, embedding_size=16, hidden_size=32, num_layers=2, num_heads=2, ffn_size=64,
        max_positions=32,
    )  # fmt: skip
    huggingface.save(AlbertModel(config, PRETRAINING_HEADS), folder, tokenizer)
