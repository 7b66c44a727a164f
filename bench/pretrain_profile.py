"""Which kernels a step spends its time in, and where the device waits between them."""

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch


def profile(step: Callable[[], object], file: Path) -> None:
    """Which kernels a step spends its time in, and how long the device waits."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        started = time.perf_counter()
        for _ in range(5):
            step()
        torch.cuda.synchronize()
        wall = time.perf_counter() - started
    kernels = sorted(found.key_averages(), key=lambda kernel: -kernel.self_device_time_total)
    busy = sum(kernel.self_device_time_total for kernel in kernels) / 5e3
    lines = [f"{1000 * wall / 5:.2f} ms a step under the profiler, kernels {busy:.2f} ms"]
    lines += ["", "where the device waits, of five steps together:", *waits(found), ""]
    lines += [
        f"{kernel.self_device_time_total / 5e3:8.3f} ms {kernel.count // 5:5d} x {kernel.key[:140]}"
        for kernel in kernels[:60]
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")
    print("\n".join(lines[:30]), flush=True)


def waits(found: torch.profiler.profile) -> list[str]:
    """The gaps between kernels: many short ones, and the longest with what came before and after them."""
    kernels = [event for event in found.events() or [] if event.device_type == torch.autograd.DeviceType.CUDA]
    kernels.sort(key=lambda event: event.time_range.start)
    gaps = [(after.time_range.start - before.time_range.end, before, after) for before, after in pairwise(kernels)]
    gaps = sorted((gap for gap in gaps if gap[0] > 0), key=lambda gap: -gap[0])
    short = [gap[0] for gap in gaps if gap[0] < 20]
    lines = [f"{sum(short) / 1000:8.3f} ms in {len(short)} gaps of less than 20 us"]
    lines += [
        f"{gap / 1000:8.3f} ms after {before.name[:60]} before {after.name[:60]}" for gap, before, after in gaps[:25]
    ]
    return lines
