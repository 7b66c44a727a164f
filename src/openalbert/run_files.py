"""The names of the files and folders in the folder of a run; a model's loader needs some of them."""

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
BASELINES = "baselines.json"  # their predictions and scores, measured once for all seeds
