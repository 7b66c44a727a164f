"""What a pretraining run will take: time, tokens, memory and disk."""

from collections.abc import Callable

from openalbert.model.cost import memory, parameters_by_component, training_flops_per_token
from openalbert.pretraining.settings import Pretrain
from openalbert.train.device import Device
from openalbert.train.estimate import Needs, checkpoint_bytes, estimate


def estimate_run(
    settings: Pretrain, micro_batch: int, step_seconds: float, step_tokens: float, depth: int, device: Device
) -> Needs:
    """The needs of a run, one of whose steps at this depth took so long and saw so many tokens."""
    needed = memory(
        settings.model,
        micro_batch,
        settings.objective.max_length,
        device.precision,
        settings.speed.recompute,
        has_muon=settings.optimizer.kind == "muon",
    )
    weights = 4 * sum(parameters_by_component(settings.model).values())
    return estimate(
        settings.budget,
        settings.depths,
        step_cost(settings),
        step_seconds=step_seconds,
        step_tokens=step_tokens,
        depth=depth,
        memory_bytes=device.memory_before + needed.total,
        # The last few checkpoints, the best, and one being written.
        disk_bytes=checkpoint_bytes(weights, needed.optimizer, settings.keep_last + 2),
    )


def step_cost(settings: Pretrain) -> Callable[[int], float]:
    """What a step at a depth costs compared with another: its FLOPs, of which the masked-LM head has no depth."""
    return lambda depth: training_flops_per_token(settings.model, settings.objective.max_length, depth=depth)
