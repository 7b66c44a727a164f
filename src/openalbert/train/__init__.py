"""The run: batches, steps, checkpoints, and what is written down about them."""
