"""Training: the loop, checkpoints, CUDA graphs, metrics, and what pretraining and fine-tuning runs share."""
