"""The names of the files and folders in the folder of a run; a model's loader needs some of them."""

from pathlib import Path

RUN = "run.json"  # the settings
RUN_INFO = "run_info.json"  # machine, data, estimate and actual cost
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
MODEL = "model"
TENSORBOARD = "tensorboard"
REPORT = "report.html"
SCORES = "scores.json"
SEEDS = "seeds.json"  # a summary over several seeds, each in a folder of its own
SEED_PREFIX = "seed-"
ERROR_ANALYSIS = "error_analysis.json"
FOLDS = "folds.json"  # a summary over the folds of cross-validation, each in a folder of its own
FOLD_PREFIX = "fold-"
FINAL = "final"  # the run on all examples after those on the folds
OUT_OF_FOLD = "out_of_fold"  # predictions for every training example, by the model that did not learn from it
CROSS_VALIDATION = "cross-validation"  # in place of a split, where scores are the mean over folds
FOLD_LOGITS = "dev_logits.safetensors"
BASELINES = "baselines.json"  # their predictions and scores, measured once for all seeds


def model_name(folder: Path) -> str:
    """What a model is called: by its folder, or that of its run."""
    folder = folder.absolute()
    return folder.parent.name if folder.name == MODEL else folder.name
