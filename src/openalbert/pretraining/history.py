"""What a model has read when a run of pretraining ends: in this run, and in those that it went on from."""

from pathlib import Path
from typing import Any

from openalbert.interop.pretraining_json import EarlierData, Pretraining, read_pretraining
from openalbert.pretraining.settings import Pretrain
from openalbert.pretraining.warm_start import source_of
from openalbert.report.summary import over_all_starts, runs_before
from openalbert.settings import to_dict
from openalbert.train.run_dir import MODEL


def initialization(settings: Pretrain) -> dict[str, Any]:
    """The model that a run begins with and the runs behind that, oldest first, for run_info.json.

    It is asked when the run begins: at its end the folder may be gone, or hold another model.
    """
    source = source_of(settings)
    if source is None:
        return {"initialized_from": "", "before": []}
    known = read_pretraining(source.folder)
    name = Path(source.name).resolve() if source.is_run else source.folder.resolve()
    return {
        "initialized_from": name.parent.name if name.name == MODEL else name.name,
        "before": [] if known is None else [*map(to_dict, known.before), _of_itself(known)],
    }


def _of_itself(known: Pretraining) -> dict[str, Any]:
    """The last run alone."""
    return {name: value for name, value in to_dict(known).items() if name != "before"}


def history(settings: Pretrain, run_info: dict[str, Any]) -> Pretraining:
    """What the model of a run that has ended says of its pretraining."""
    before, actual = runs_before(run_info), run_info["actual"]
    return Pretraining(
        tokens=actual["tokens"] + (before[-1].tokens if before else 0),
        text_tokens=run_info["data"]["train_tokens"],
        steps=actual["steps"],
        minutes=60 * actual["hours"],
        device=over_all_starts(run_info, "device") or "",
        precision=over_all_starts(run_info, "precision") or "",
        length=settings.objective.max_length,
        initialized_from=run_info["initialized_from"],
        earlier_data=tuple(
            EarlierData(record["steps"], record["tokens_seen"], record["train_tokens"], record.get("train_sha256", ""))
            for record in run_info.get("earlier_data", ())
        ),
        before=before,
    )
