"""Pretraining: batches from shards, masked LM and sentence order, the run."""
