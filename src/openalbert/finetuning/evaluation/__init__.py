"""Evaluation of a split: metrics, intervals, baselines, the error analysis, and files of predictions."""
