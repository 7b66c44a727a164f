"""The two sides of `bench/pretrain.py`: our step as `openalbert pretrain` takes it, and transformers' own."""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pretrain_jobs import Job, num_predictions
from pretrain_profile import profile

from openalbert.errors import UserError
from openalbert.objectives.sentence_order import SentenceOrder
from openalbert.optim.optimizer import make_optimizer
from openalbert.optim.schedule import Budget
from openalbert.optim.settings import OptimizerSettings
from openalbert.pretraining.batches import Batches, Objective, PretrainingBatch
from openalbert.pretraining.loss import pretraining
from openalbert.pretraining.run import compiled_scope, is_captured, make_model
from openalbert.pretraining.settings import Pretrain
from openalbert.text.shards import Tokens, VocabularyInfo, finish, open_shards, piece_name, write_piece
from openalbert.text.tokenizer import Tokenizer
from openalbert.train.device import Speed, measure_matmul_peak, open_device
from openalbert.train.loop import LoopConfig, TrainState, training_steps

WARM_STEPS = 8  # after the first: allocator, clocks and caches settle


class Turn:
    """The right to take steps on the GPU: a side gets ready before it has it, and measures when it has.

    Getting ready is not free for the one that measures: models and inputs come onto the GPU, compiling takes CPU cores.
    """

    def __init__(self, given: Event) -> None:
        self._given = given
        self.waited = 0.0

    def wait(self) -> None:
        """Go on when nobody else measures."""
        began = time.perf_counter()
        self._given.wait()
        self.waited += time.perf_counter() - began


def measured(steps: Iterator[Any], job: Job, length: int, first: float) -> dict[str, Any]:
    """Tokens a second over at least so many seconds, and the time between the ends of single steps on the device.

    As in training, the host may prepare a step while the device is at the one before it.
    """
    for _ in range(WARM_STEPS):
        next(steps)
    ends = [_end_of_step()]
    ends[0].synchronize()
    started = time.perf_counter()
    while time.perf_counter() - started < job.seconds or len(ends) < 3:
        next(steps)
        ends.append(_end_of_step())
        ends[-2].synchronize()
    ends[-1].synchronize()
    whole = time.perf_counter() - started
    times = [before.elapsed_time(after) for before, after in pairwise(ends)]
    cuts = statistics.quantiles(times, n=20)
    return {
        "tokens_per_second": job.batch * length * len(times) / whole,
        "seconds": whole,
        "steps": len(times),
        "median_ms": statistics.median(times),
        "ms_of_5_and_95_percent": [cuts[0], cuts[-1]],
        "first_step_seconds": first,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }


def _end_of_step() -> torch.cuda.Event:
    end = torch.cuda.Event(enable_timing=True)
    end.record()
    return end


def random_shards(folder: Path, tokenizer: Tokenizer) -> Path:
    """One long document of random tokens, so that every example but its last is full."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 50, 80_000)
    sentences = [rng.integers(5, tokenizer.vocab_size, length) for length in lengths]
    tokenizer.save(folder / "tokenizer")
    special = {"[CLS]": tokenizer.cls_id, "[SEP]": tokenizer.sep_id, "[MASK]": tokenizer.mask_id}
    vocabulary = VocabularyInfo(tokenizer.fingerprint, tokenizer.vocab_size, special)
    tokens, name = Tokens(np.concatenate(sentences), lengths, np.array([len(lengths)])), piece_name(0, 0)
    piece = write_piece(folder, name, {"train": [tokens]}, vocabulary.dtype, {})
    finish(folder, vocabulary, {}, (), {}, {name: piece})
    return folder


class OneBatch:
    """A source that makes no batches: the time of a step without them shows whether it waits for data."""

    def __init__(self, batch: PretrainingBatch) -> None:
        self.batch = batch

    def stream(self, *, start: int, rank: int, world: int, micro_batches: int) -> Iterator[list[PretrainingBatch]]:
        """The batch, for ever."""
        while True:
            yield [self.batch]


def ours(job: Job, arguments: argparse.Namespace, turn: Turn) -> dict[str, Any]:
    """Our step as `openalbert pretrain` takes it."""
    length, config = arguments.length, job.config
    objective = Objective(length, sentence_order=SentenceOrder(short_fraction=0.0))
    settings = Pretrain(
        preset=job.model,
        model=config,
        objective=objective,
        batch_size=job.batch,
        optimizer=OptimizerSettings(kind=arguments.optimizer),
        speed=Speed(compile=arguments.compile),
    )
    with tempfile.TemporaryDirectory() as folder, open_device(settings.speed) as device:
        shards = open_shards(random_shards(Path(folder), Tokenizer.load(arguments.tokenizer)))
        model = make_model(settings, device)
        turn.wait()
        peak = measure_matmul_peak(device)
        started = time.perf_counter()
        compiled = compiled_scope(settings, device)
        batches = Batches(shards, objective, job.batch, 1, device=device.torch_device, compiled=compiled == "whole")
        assert (batches.at(0).lengths == length).float().mean() > 0.99  # all but the document's last
        loop_config = LoopConfig(Budget(steps=10**6), settings.schedule, 1e-4, 1.0, settings.depths, 1)
        optimizer = make_optimizer(model, settings.optimizer)
        learning = pretraining(model, is_compiled=compiled != "none", is_captured=is_captured(settings, device))
        source = OneBatch(batches.at(0)) if job.kind == "ours-one-batch" else batches
        steps = training_steps(model, optimizer, source, learning, loop_config, device, TrainState())
        next(steps)
        torch.cuda.synchronize()
        measurements = measured(steps, job, length, time.perf_counter() - started)
        if arguments.profile and job.kind == "ours":
            profile(lambda: next(steps), arguments.out / f"{job.model}-profile.txt")
        steps.close()  # type: ignore[attr-defined]
    return {
        **measurements,
        "matmul_peak_tflops": peak / 1e12,
        "compiled": compiled,
        "is_fused": model.encoder.is_fused,
    }


def theirs(job: Job, arguments: argparse.Namespace, turn: Turn) -> dict[str, Any]:
    """The step of transformers' own pretraining model."""
    import transformers

    config = job.config
    sizes = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.ffn_size,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    if config.sharing.ffn == 1:
        kind, order = transformers.AlbertForPreTraining, "sentence_order_label"
        their_config = transformers.AlbertConfig(embedding_size=config.embedding_size, **sizes)
    else:
        kind, order = transformers.BertForPreTraining, "next_sentence_label"
        their_config = transformers.BertConfig(**sizes)
    model = kind._from_config(their_config, attn_implementation="sdpa").cuda()
    batch, length = job.batch, arguments.length
    ids = torch.randint(5, config.vocab_size, (batch, length), device="cuda")
    hidden_places = torch.rand(batch, length, device="cuda").argsort(1)[:, : num_predictions(length)]
    labels = torch.full_like(ids, -100).scatter(1, hidden_places, ids.gather(1, hidden_places))
    inputs = {
        "input_ids": ids,
        "token_type_ids": (torch.arange(length, device="cuda") >= length // 2)
        .long()
        .expand(batch, length)
        .contiguous(),
        "labels": labels,
        order: torch.randint(0, 2, (batch,), device="cuda"),
    }
    is_compiled = job.kind == "compiled"
    run = torch.compile(model, backend=compiled_in_time_for(turn)) if is_compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def steps() -> Iterator[None]:
        while True:
            with torch.autocast("cuda", torch.bfloat16):
                loss = run(**inputs).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            yield

    if not is_compiled:
        turn.wait()
    started, waited = time.perf_counter(), turn.waited
    taken = steps()
    next(taken)
    torch.cuda.synchronize()
    first = time.perf_counter() - started - (turn.waited - waited)
    with open_device(Speed()) as device:
        peak = measure_matmul_peak(device)
    return {**measured(taken, job, length, first), "matmul_peak_tflops": peak / 1e12}


def compiled_in_time_for(turn: Turn) -> Callable[..., Any]:
    """torch's own compiler, which works on the CPU's cores; what it has compiled is first run in its turn."""
    from torch._functorch import config
    from torch._inductor.compile_fx import compile_fx

    if hasattr(config, "force_non_lazy_backward_lowering"):  # else the backward pass is compiled at its first use
        config.force_non_lazy_backward_lowering = True

    def backend(graph: Any, inputs: Any) -> Any:
        compiled = compile_fx(graph, inputs)
        turn.wait()
        return compiled

    return backend


def take_turn(job: Job, arguments: argparse.Namespace, given: Event, sender: Any) -> None:
    """What a process of its own does: get ready, wait, measure, report."""
    torch.zeros(1, device="cuda")  # the first use of a GPU takes seconds
    side = ours if job.kind.startswith("ours") else theirs
    try:
        measurements = side(job, arguments, Turn(given))
    except torch.OutOfMemoryError:
        measurements = {"out_of_memory": True}
    except UserError as error:
        measurements = {"problem": str(error)}
    sender.send(measurements)
