"""The losses of a short compiled run, its passes captured as a CUDA graph or not: run as a script, prints JSON."""

import json
import sys
from dataclasses import replace
from pathlib import Path

from openalbert.model.presets import preset
from openalbert.optim.optimizer import make_optimizer
from openalbert.optim.schedule import Budget, Schedule
from openalbert.pretraining.batches import Batches, Objective
from openalbert.pretraining.loss import pretraining
from openalbert.pretraining.run import make_model
from openalbert.pretraining.settings import Pretrain
from openalbert.text.shards import open_shards
from openalbert.train.depth_schedule import DepthSchedule, DepthStage
from openalbert.train.device import Speed, open_device
from openalbert.train.loop import LoopConfig, TrainState, training_steps


def main() -> None:
    shards, is_captured = Path(sys.argv[1]), sys.argv[2] == "captured"
    settings = Pretrain(
        preset="albert-base",
        model=replace(preset("albert-base"), vocab_size=30_000),
        speed=Speed(deterministic=True),
    )
    with open_device(settings.speed) as device:
        model = make_model(settings, device)
        optimizer = make_optimizer(model, settings.optimizer)
        batches = Batches(open_shards(shards), Objective(128), 64, seed=3, device=device.torch_device)
        depths = DepthSchedule((DepthStage(3), DepthStage(12, 0.5)))
        loop_config = LoopConfig(Budget(steps=30), Schedule(), 0.001, 1.0, depths, 1)
        task = pretraining(model, is_compiled=True, is_captured=is_captured)
        taken = list(training_steps(model, optimizer, batches, task, loop_config, device, TrainState()))
    remarks = [kind for step in taken for kind, _ in step.remarks]
    print(json.dumps({"losses": [step.loss for step in taken], "remarks": remarks}))


if __name__ == "__main__":
    main()
