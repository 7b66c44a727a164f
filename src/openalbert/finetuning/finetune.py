"""`openalbert finetune`: a pretrained model learns a task; its best weights become a model folder with scores."""

from openalbert.errors import UserError
from openalbert.finetuning.data import load_data
from openalbert.finetuning.outcome import REPORT, SCORES, final_scores
from openalbert.finetuning.run import FinetuningRun, log_from_main
from openalbert.finetuning.seeds import SEEDS, several_seeds
from openalbert.finetuning.settings import FREE_TO_CHANGE, Finetune
from openalbert.report.error_analysis import ERROR_ANALYSIS
from openalbert.report.run_reader import seed_folders
from openalbert.train.device import open_device
from openalbert.train.metrics_log import METRICS
from openalbert.train.run_dir import claim_folder, locked
from openalbert.train.signals import Stop


def finetune(settings: Finetune) -> None:
    """Carry out a run, or several with different seeds, or go on with them."""
    if not settings.task:
        raise UserError("name the task: `openalbert finetune MODEL --task sst2 --data DIR`, or --task classification")
    with Stop() as stop, open_device(settings.speed) as device, locked(settings, device, "finetune"):
        task_data = load_data(settings)
        for remark in task_data.remarks:
            log_from_main(device, remark)
        if settings.dry_run:
            FinetuningRun(settings, task_data, device).dry_run()
            return
        if settings.seeds > 1 and not settings.fresh and (settings.out / METRICS).exists():
            raise UserError(f"{settings.out} holds a single run: give several seeds another --out, or --fresh")
        claim_folder(settings, device, FREE_TO_CHANGE, (SCORES, SEEDS, "seed-*", REPORT, ERROR_ANALYSIS))
        # One that was one of several before is one of several.
        if settings.seeds > 1 or seed_folders(settings.out):
            several_seeds(settings, task_data, device, stop)
        else:
            scores = FinetuningRun(settings, task_data, device).carry_out(stop)
            if device.is_main:
                print(final_scores(scores))
