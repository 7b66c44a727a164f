"""Training the head alone: the encoder is run once over all examples, and the head learns from what it gave.

The head is ALBERT's own, pooler and classifier, on the [CLS] state of the last layer. So the model folder is an
ordinary one, with the encoder unchanged.
"""

import time

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from openalbert.finetuning.predict import (
    TOKENS_AT_A_TIME,
    Outputs,
    batches_by_length,
    combine_windows,
    inference,
    pack,
)
from openalbert.model.albert import AlbertModel
from openalbert.model.encoder import Encoded
from openalbert.progress import Work
from openalbert.tasks.task import Sequences
from openalbert.train.device import Device

DRY_TOKENS = 8_192  # that a dry run encodes, to time it


class FrozenStates:
    """The [CLS] states of all examples after the last layer, computed once for all epochs, evaluations and seeds."""

    def __init__(self, encoder_of: AlbertModel, device: Device, *, is_dry: bool = False) -> None:
        """A dry run encodes a few examples of each split, and takes zeros for the others."""
        self.model, self.device, self.is_dry = encoder_of.to(device.torch_device).eval(), device, is_dry
        self.seconds = 0.0
        """The time that the encoder took, or in a dry run would take."""
        self._known: dict[int, tuple[Sequences, Tensor]] = {}

    def of(self, name: str, sequences: Sequences) -> Float[Tensor, "sequences hidden"]:
        """The states of these sequences, on the device; `name` is shown with the progress."""
        if id(sequences) not in self._known:
            self._known[id(sequences)] = (sequences, self._encode(name, sequences))
        return self._known[id(sequences)][1]

    def outputs(self, model: AlbertModel, name: str, sequences: Sequences) -> Outputs:
        """The logits of a model whose encoder is this one: its head applied to the states."""
        with inference(model), self.device.autocast():
            encoded = pooled(model, self.of(name, sequences))
            logits: dict[str, np.ndarray] = {
                head.kind: model.scores(head.kind, encoded).float().cpu().numpy() for head in model.head_list
            }
        return Outputs({kind: combine_windows(sequences, rows) for kind, rows in logits.items()})

    @torch.no_grad()
    def _encode(self, name: str, sequences: Sequences) -> Float[Tensor, "sequences hidden"]:
        lengths, started, done = sequences.lengths, time.perf_counter(), 0
        states = torch.zeros(len(lengths), self.model.config.hidden_size, device=self.device.torch_device)
        with Work(f"encoding {name}", len(sequences.ids), "tokens") as work:
            for chosen in batches_by_length(lengths, TOKENS_AT_A_TIME, self.device):
                states[torch.from_numpy(chosen).to(states.device)] = self._first_states(sequences, chosen)
                done += int(lengths[chosen].sum())
                work.advance(float(lengths[chosen].sum()))
                if self.is_dry and done >= DRY_TOKENS:
                    break
        self.seconds += (time.perf_counter() - started) * len(sequences.ids) / max(1, done)
        return states

    def _first_states(self, sequences: Sequences, chosen: Int64[np.ndarray, "_"]) -> Float[Tensor, "sequences hidden"]:
        packed = pack(sequences, chosen, self.device)
        lengths = sequences.lengths[chosen]
        firsts = torch.from_numpy(np.cumsum(lengths) - lengths).to(packed.ids.device)
        with self.device.autocast():
            return self.model.encode_packed(packed.ids, packed.lengths, packed.segments, at=firsts).hidden.float()


def pooled(model: AlbertModel, states: Float[Tensor, "sequences hidden"]) -> Encoded:
    """What the heads read, from the [CLS] states of the last layer."""
    return Encoded(states.new_empty(0, states.shape[1]), model.encoder.pool(states))


@torch.no_grad()
def standardize_pooler(model: AlbertModel, states: Float[Tensor, "sequences hidden"]) -> None:
    """Start the pooler as the map that standardizes the states: mean 0 and standard deviation 1 over the examples.

    Of a pretrained model, a few dimensions are a hundred times as large as the others, and the pooler was trained to
    predict the order of sentences. From here, the head learns several times as fast.
    """
    std, mean = torch.std_mean(states, 0, correction=0)
    scale = 1 / std.clamp(min=1e-3 * std.mean().clamp(min=1e-12))
    model.encoder.pooler.weight.copy_(torch.diag(scale))
    model.encoder.pooler.bias.copy_(-mean * scale)
