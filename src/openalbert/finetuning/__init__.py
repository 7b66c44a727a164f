"""Fine-tuning: examples of a task, losses, the run, evaluation."""
