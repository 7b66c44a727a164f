"""Run by torchrun: a pretraining run whose reductions over the processes are counted, into a JSON file."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from openalbert import cli


def main() -> None:
    sizes: list[int] = []
    reduce = dist.all_reduce

    def counted(tensor: Any, *more: Any, **named: Any) -> Any:
        sizes.append(tensor.numel())
        return reduce(tensor, *more, **named)

    dist.all_reduce = counted
    cli.main(sys.argv[2:])
    if os.environ["RANK"] == "0":
        Path(sys.argv[1]).write_text(json.dumps(sizes))


if __name__ == "__main__":
    main()
