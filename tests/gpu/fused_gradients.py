"""How far gradients in bf16 are from fp32's, all compiled: by torch's own passes, by fused ones, and by these where the
forward pass is computed again on the way back. A script, prints JSON.

A script since the checks of types in tests would be compiled along.
"""

import json
import sys
from dataclasses import replace

import torch
from torch import Tensor

from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS, Sharing
from openalbert.model.encoder import run_layer
from openalbert.model.kernels.fused_linear import can_fuse
from openalbert.model.kernels.masked_attention import attend_masked
from openalbert.model.presets import preset


def main() -> None:
    name, length = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(0)
    sharing = Sharing(1, 1) if name.startswith("albert") else Sharing(4, 4)
    config = replace(preset(name), num_layers=4, sharing=sharing, initializer_range=0.04)
    config = replace(config, hidden_dropout=0.0, attention_dropout=0.0)
    model = AlbertModel(config, PRETRAINING_HEADS).cuda().train()
    ids = torch.randint(5, 30_000, (8, length), device="cuda")
    lengths = torch.tensor([512, 511, 300, 65, 64, 33, 29, 25], device="cuda").clamp(max=length)
    mask = torch.arange(length, device="cuda") < lengths[:, None]
    at = torch.randint(1, 24, (8, 20), device="cuda")

    def gradients(is_fused: bool, is_half: bool, recomputes: bool = False) -> dict[str, Tensor]:
        model.encoder.attend_masked = attend_masked if is_half else None
        model.encoder.is_fused = is_fused
        model.encoder.recomputes_activations = recomputes
        model.encoder.run_layer = torch.compile(run_layer, dynamic=False) if is_half else run_layer
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=is_half):
            encoded = model.encode(ids, mask=mask, at=at)
            words, order = model.scores("masked_lm", encoded), model.scores("sentence_order", encoded)
        (words.float().square().mean() + order.float().square().sum()).backward()
        return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}

    exact, plain, fused = gradients(False, False), gradients(False, True), gradients(True, True)
    again = gradients(True, True, recomputes=True)
    assert can_fuse(config.hidden_size, config.ffn_size, config.num_heads, length)
    errors = {
        name: [((one[name] - true).norm() / true.norm()).item() for one in (plain, fused, again)]
        for name, true in exact.items()
    }
    print(json.dumps(errors))


if __name__ == "__main__":
    main()
