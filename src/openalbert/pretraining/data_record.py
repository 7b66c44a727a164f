"""Which data a run is trained on, by content: it is resumed on the same data, or on purpose on other data.

The record is in run_info.json and in every checkpoint. Data are compared by the checksums in the manifest of the
shards, so nothing else is read, and a folder may be moved.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openalbert.errors import UserError
from openalbert.pretraining.batches import Batches
from openalbert.pretraining.loss import unigram_entropy
from openalbert.train.device import Device
from openalbert.train.state import TrainState

DATA_KEYS = ("data", "earlier_data", "unigram_entropy")
"""What run_info.json and a checkpoint hold about the data."""


def data_record(folder: Path, train: Batches, heldout: Batches | None) -> dict[str, Any]:
    """The record of a run that starts on these data."""
    shards = train.shard_set
    return {
        "folder": str(folder),
        "train_tokens": shards.num_tokens,
        "train_documents": sum(entry.documents for entry in shards.entries),
        "unusable_documents": train.unusable_documents,
        "unusable_tokens": train.unusable_tokens,
        "heldout_tokens": heldout.shard_set.num_tokens if heldout else 0,
        "examples_per_epoch": train.examples_per_epoch,
        "tokenizer": shards.manifest.tokenizer,
        "train_sha256": shards.sha256,
        "heldout_sha256": heldout.shard_set.sha256 if heldout else None,
        "from_step": 0,
        "from_tokens": 0,
    }


def check_same_on_all_ranks(record: Mapping[str, Any], device: Device) -> None:
    """Refuse processes that see different data, as copies on several machines may be."""
    content = [record[name] for name in ("tokenizer", "train_sha256", "heldout_sha256")]
    # 48 bits, which a float64 holds exactly.
    mark = float(int(hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12], 16))
    differs = device.any_rank(mark != device.from_main(mark))
    problem = UserError(
        f"the processes of this run see different data in {record['folder']}: give all of them the same shards"
    )
    device.raise_together(problem if differs else None)


def check_same_data(before: Mapping[str, Any], now: Mapping[str, Any], where: Path, allow_new_data: bool) -> None:
    """Refuse to resume a checkpoint on other data than its own, unless that is allowed and the vocabulary is the same.

    Held-out data may change: nothing is learned from them.
    """
    if not before:
        raise UserError(
            f"{where}: it has no record of its data, so it cannot be resumed: give another --out, with --warm-start to "
            "start from its weights, or --fresh to start over"
        )
    if before["tokenizer"] != now["tokenizer"]:
        raise UserError(
            f"{where}: it was trained with the vocabulary {before['tokenizer'][:12]}, but the shards in "
            f"{now['folder']} were made with {now['tokenizer'][:12]}, and weights belong to their vocabulary: give "
            "--data with shards of the first, another --out, or --fresh to start over"
        )
    if before["train_sha256"] != now["train_sha256"] and not allow_new_data:
        raise UserError(
            f"{where}: it was trained on data with {_checksum(before)}, but those in {now['folder']} have "
            f"{_checksum(now)}: give --data with the first, --allow-new-data to continue on the second on purpose, or "
            "another --out or --fresh to start over"
        )


def _checksum(record: Mapping[str, Any]) -> str:
    return f"the checksum {record['train_sha256'][:12]} ({record['train_tokens']:,} tokens)"


def update_data_record(
    run_info: dict[str, Any], now: Mapping[str, Any], train: Batches, train_state: TrainState
) -> dict[str, str]:
    """Update run_info of a resumed run to the data that it reads from here on; return an event for each change.

    New training data are read from their beginning: their order is unrelated to the earlier one, and an epoch has
    another number of examples.
    """
    before, events = run_info["data"], {}
    if before["train_sha256"] != now["train_sha256"]:
        seen = train_state.tokens - before["from_tokens"]
        earlier = {**before, "steps": train_state.step - before["from_step"], "tokens_seen": seen}
        run_info["earlier_data"] = [*run_info.get("earlier_data", []), earlier]
        run_info["data"] = {**now, "from_step": train_state.step, "from_tokens": train_state.tokens}
        run_info["unigram_entropy"] = unigram_entropy(train.shard_set)
        train_state.reset_window()  # other text, another loss
        events["new_data"] = (
            f"from step {train_state.step:,} on it is trained on data with {_checksum(now)}, up to here on data with "
            f"{_checksum(before)}"
        )
    else:
        run_info["data"] = {**now, "from_step": before["from_step"], "from_tokens": before["from_tokens"]}
    if before["heldout_sha256"] != now["heldout_sha256"]:
        events["new_heldout"] = (
            f"from step {train_state.step:,} on it is evaluated on other held-out data: losses before and after cannot "
            "be compared, and the best checkpoint is chosen anew"
            if now["heldout_sha256"]
            else f"from step {train_state.step:,} on there are no held-out data to evaluate on"
        )
    train.first_step = run_info["data"]["from_step"]
    return events
