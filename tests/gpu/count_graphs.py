"""How many graphs one compiled layer takes for all depths of a model: run as a script, prints JSON."""

import json
import sys
from dataclasses import replace

import torch

from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS
from openalbert.model.encoder import run_layer
from openalbert.model.presets import preset


def main() -> None:
    config = replace(preset(sys.argv[1]), hidden_dropout=0.0, attention_dropout=0.0)
    model = AlbertModel(config, PRETRAINING_HEADS).cuda()
    model.encoder.run_layer = torch.compile(run_layer, dynamic=False)
    ids = torch.randint(5, 30000, (8, 128), device="cuda")
    for depth in (3, 6, 12):
        with torch.autocast("cuda", torch.bfloat16):
            hidden = model.encode(ids, mask=torch.ones_like(ids, dtype=torch.bool), depth=depth).hidden
        hidden.float().square().mean().backward()
    print(json.dumps({"graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"]}))


if __name__ == "__main__":
    main()
