"""What a frozen encoder gives for each example, for a head that is fitted to it.

The head is ALBERT's own, pooler and classifier, on the [CLS] state of the last layer. So the model folder is an
ordinary one, with the encoder unchanged.
"""

import hashlib
import sys
import time
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Int32, Int64
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
from openalbert.progress import Work, log
from openalbert.tasks.task import Sequences
from openalbert.train.device import Device
from openalbert.train.run import Stop

DRY_TOKENS = 8_192  # that a dry run encodes, to time it


class FrozenStates:
    """The [CLS] states of sequences after the last layer, each computed once for all folds, fits and evaluations."""

    def __init__(
        self, encoder_of: AlbertModel, device: Device, stop: Stop | None = None, *, is_dry: bool = False
    ) -> None:
        """A dry run encodes a few examples of each split, and takes zeros for the others."""
        self.model, self.device, self.is_dry = encoder_of.to(device.torch_device).eval(), device, is_dry
        self.stop = stop
        self.seconds = 0.0
        """The time that the encoder took, or in a dry run would take."""
        self._states = torch.empty(0, self.model.config.hidden_size, device=device.torch_device)
        self._row_of: dict[bytes, int] = {}
        """The row of the states that a sequence has, by a hash of its tokens and of where its second segment begins."""

    def of(self, name: str, sequences: Sequences) -> Float[Tensor, "sequences hidden"]:
        """The states of these sequences, on the device; `name` is shown with the progress."""
        borders = zip(pairwise(sequences.starts.tolist()), sequences.second.tolist(), strict=True)
        keys = [_key(sequences.ids[start:end], second) for (start, end), second in borders]
        new = {key: number for number, key in enumerate(keys) if key not in self._row_of}
        if new:
            rows = len(self._states)
            self._states = torch.cat((self._states, self._encode(name, sequences, np.array(list(new.values())))))
            self._row_of |= {key: rows + number for number, key in enumerate(new)}
        return self._states[torch.tensor([self._row_of[key] for key in keys], device=self._states.device)]

    def outputs(self, model: AlbertModel, name: str, sequences: Sequences) -> Outputs:
        """The logits of a model whose encoder is this one: its head applied to the states."""
        with inference(model), self.device.autocast():
            encoded = pooled(model, self.of(name, sequences))
            logits: dict[str, np.ndarray] = {
                head.kind: model.scores(head.kind, encoded).float().cpu().numpy() for head in model.head_list
            }
        return Outputs({kind: combine_windows(sequences, rows) for kind, rows in logits.items()})

    @torch.no_grad()
    def _encode(self, name: str, sequences: Sequences, rows: Int64[np.ndarray, "rows"]) -> Float[Tensor, "rows hidden"]:
        lengths, started, done = sequences.lengths[rows], time.perf_counter(), 0
        states = torch.zeros(len(rows), self.model.config.hidden_size, device=self.device.torch_device)
        with Work(f"encoding {name}", int(lengths.sum()), "tokens") as work:
            for chosen in batches_by_length(lengths, TOKENS_AT_A_TIME, self.device):
                states[torch.from_numpy(chosen).to(states.device)] = self._first_states(sequences, rows[chosen])
                done += int(lengths[chosen].sum())
                work.advance(float(lengths[chosen].sum()))
                if self.stop is not None and self.stop.asked():
                    if self.device.is_main:
                        log(f"stopped while encoding {name}; the same command starts over")
                    sys.exit(self.stop.exit_code)
                if self.is_dry and done >= DRY_TOKENS:
                    break
        self.seconds += (time.perf_counter() - started) * int(lengths.sum()) / max(1, done)
        return states

    def _first_states(self, sequences: Sequences, chosen: Int64[np.ndarray, "_"]) -> Float[Tensor, "sequences hidden"]:
        packed = pack(sequences, chosen, self.device)
        lengths = sequences.lengths[chosen]
        firsts = torch.from_numpy(np.cumsum(lengths) - lengths).to(packed.ids.device)
        with self.device.autocast():
            return self.model.encode_packed(packed.ids, packed.lengths, packed.segments, at=firsts).hidden.float()


def _key(ids: Int32[np.ndarray, "tokens"], second: int) -> bytes:
    """16 bytes instead of all tokens: of a million long texts those would be gigabytes."""
    return hashlib.blake2b(ids.tobytes() + b"%d" % second, digest_size=16).digest()


def pooled(model: AlbertModel, states: Float[Tensor, "sequences hidden"]) -> Encoded:
    """What the heads read, from the [CLS] states of the last layer."""
    return Encoded(states.new_empty(0, states.shape[1]), model.encoder.pool(states))


@torch.no_grad()
def standardize_pooler(model: AlbertModel, states: Float[Tensor, "sequences hidden"]) -> None:
    """Start the pooler as the map that standardizes the states: mean 0 and standard deviation 1 over the examples.

    Of a pretrained model, a few dimensions are a hundred times as large as the others, and the pooler was trained to
    predict the order of sentences. One penalty fits all dimensions where they are alike.
    """
    std, mean = torch.std_mean(states, 0, correction=0)
    scale = 1 / std.clamp(min=1e-3 * std.mean().clamp(min=1e-12))
    model.encoder.pooler.weight.copy_(torch.diag(scale))
    model.encoder.pooler.bias.copy_(-mean * scale)
