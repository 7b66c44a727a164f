"""Where a run computes, in what precision and on how many processes: how fast, never what is learned."""

import contextlib
import datetime
import gc
import os
import platform
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from openalbert.errors import UserError
from openalbert.model.cost import Precision

ATTENTION_KERNELS = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]

MEMORY_FRACTION = 0.7  # of the free memory, for a micro-batch size that the user did not choose
CPU_MEMORY = 4 * 2**30


@dataclass(frozen=True)
class Speed:
    """How fast a run goes. Changing any of this changes what is learned by rounding at most."""

    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda or cuda:1."""
    precision: Literal["auto", "bf16", "tf32", "fp32"] = "auto"
    """Of matrix products and activations; auto: bf16 on a GPU, fp32 on a CPU. tf32, on a GPU only: fp32, but matrix
    products round what they multiply to 10 bits of mantissa, and are several times as fast as with fp32, which keeps
    all 23. Weights and optimizer are fp32 always."""
    compile: Literal["auto", "none", "layer", "whole"] = "auto"
    """In pretraining layer: one layer is compiled once, whatever the depth, and the MLM loss, and on a GPU both passes
    are captured as a CUDA graph (but not with --speed.recompute); whole: the making of batches is compiled too, slower
    to start; auto: layer on a GPU, none on a CPU. In fine-tuning whole: the encoder's passes are captured as CUDA
    graphs; auto: the same, where possible."""
    micro_batch: int | None = None
    """Examples that one device computes at a time; not given: as many as its memory is estimated to hold."""
    recompute: bool = False
    """Keep only each layer's input in training and compute the rest again: less memory, a quarter slower."""
    deterministic: bool = False
    """On a GPU, deterministic kernels only, at some cost in speed. With them pretraining that was resumed on one H200
    was bit-identical to a run that was never stopped; without them two runs of one command differ in rounding. On a
    CPU runs are bit-identical without it."""
    threads: int | None = None
    """CPU threads; not given: torch's own choice, which follows OMP_NUM_THREADS."""

    def __post_init__(self) -> None:
        for name in ("micro_batch", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} is {value}: it must be at least 1")


@dataclass(frozen=True)
class Device:
    """This process's place in a run."""

    torch_device: torch.device
    precision: Precision
    rank: int = 0
    world: int = 1
    memory_before: int = 0
    """Bytes that the process used before anything was built; 0 on a GPU."""

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and logs."""
        return self.rank == 0

    @property
    def is_cuda(self) -> bool:
        """Whether it computes on a GPU."""
        return self.torch_device.type == "cuda"

    @property
    def is_asynchronous(self) -> bool:
        """Whether it computes while the host does something else."""
        return self.is_cuda

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Matrix products in the run's precision; for tf32 and fp32 `open_device` has seen to it."""
        if self.precision != "bf16":
            return contextlib.nullcontext()
        return torch.autocast(self.torch_device.type, torch.bfloat16)

    def copy(self, array: np.ndarray) -> Tensor:
        """The array as a tensor on the device, without waiting for the work that a GPU has queued."""
        tensor = torch.from_numpy(array)
        return (tensor.pin_memory() if self.is_cuda else tensor).to(self.torch_device, non_blocking=True)

    def sum_over_ranks(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, on each of them; in place."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def any_rank(self, flag: bool) -> bool:
        """Whether the flag is set on any process; all of them wait for each other."""
        if self.world == 1:
            return flag
        return bool(self.sum_over_ranks(torch.tensor(float(flag), device=self.torch_device)) > 0)

    def from_main(self, value: float) -> float:
        """The main process's number, on all of them: clocks differ, decisions must not."""
        if self.world == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64, device=self.torch_device)
        dist.broadcast(shared, 0)
        return shared.item()

    def raise_together(self, problem: UserError | None) -> None:
        """Raise the main process's problem, if it has one; the others then exit silently."""
        if self.from_main(float(problem is not None)):
            raise problem or SystemExit(1)

    def wait_for_all(self) -> None:
        """Wait until every process has come here."""
        if self.world > 1:
            dist.barrier()

    def free_memory(self) -> int | None:
        """Bytes still free on a GPU."""
        return torch.cuda.mem_get_info(self.torch_device)[0] if self.is_cuda else None

    def peak_memory(self) -> int:
        """The most bytes that the run has used so far: of the GPU, or else of the process."""
        return torch.cuda.max_memory_allocated(self.torch_device) if self.is_cuda else _process_memory()

    def describe(self) -> str:
        """The hardware in words."""
        if self.is_cuda:
            return f"{self.world} x {torch.cuda.get_device_name(self.torch_device)}"
        threads = torch.get_num_threads()
        return f"{self.world} x CPU ({platform.machine()}, {threads} thread{'s' if threads > 1 else ''})"


@contextlib.contextmanager
def open_device(speed: Speed) -> Iterator[Device]:
    """The device that the settings and torchrun's environment ask for; the process group ends with the block."""
    if speed.threads is not None:
        torch.set_num_threads(speed.threads)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    name = speed.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    torch_device = usable_device(name)
    if torch_device.type == "cuda":
        torch.cuda.set_device(torch_device)
        torch.cuda.reset_peak_memory_stats(torch_device)  # a run before this one in the process had its own
    precision = speed.precision
    if precision == "auto":
        precision = "bf16" if torch_device.type == "cuda" else "fp32"
    if precision == "tf32" and torch_device.type == "cpu":
        raise UserError(
            "the precision tf32 is a GPU's, and this run is on a CPU: leave out --speed.precision, or give fp32"
        )
    matmul_before = torch.get_float32_matmul_precision()
    # A bf16 run multiplies little in fp32, and for that tf32 is exact enough.
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    if speed.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    if world > 1:
        backend = "nccl" if torch_device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=datetime.timedelta(minutes=30))
    try:
        memory_before = 0 if torch_device.type == "cuda" else _process_memory()
        # cuDNN's attention first: on an H200 it is half as fast again as the one torch prefers, and more with a mask.
        # Its backward pass is never deterministic, even if torch is asked for that.
        with sdpa_kernel(ATTENTION_KERNELS[1:] if speed.deterministic else ATTENTION_KERNELS, set_priority=True):
            yield Device(torch_device, precision, rank, world, memory_before)
    finally:
        torch.set_float32_matmul_precision(matmul_before)
        if speed.deterministic:
            torch.use_deterministic_algorithms(False)
        if world > 1:
            gc.collect()  # any reference to the group would keep its threads alive while Python exits
            dist.destroy_process_group()


def usable_device(name: str) -> torch.device:
    """The device of that name, such as cpu, cuda, cuda:1 or mps; one that does not work is refused."""
    try:
        torch_device = torch.device(name)
        torch.empty(1, device=torch_device)
    except (RuntimeError, AssertionError) as error:
        has_backend = not isinstance(error, NotImplementedError)
        reason = str(error).splitlines()[0] if has_backend else "PyTorch does not have it on this machine"
        raise UserError(f"the device '{name}' cannot be used ({reason}): try auto, or cpu") from None
    return torch_device


def _process_memory() -> int:
    """The most bytes that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure_matmul_peak(device: Device) -> float:
    """FLOP/s of one large square matrix product on random data: what model FLOPs utilization (MFU) is relative to."""
    size = 8192 if device.is_cuda else 1024
    dtype = torch.bfloat16 if device.precision == "bf16" else torch.float32
    left, right = torch.randn(2, size, size, device=device.torch_device).to(dtype)
    times = []
    for _ in range(8):
        started = time.perf_counter()
        left @ right
        if device.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return 2 * size**3 / min(times)
