"""Checkpoints of Google's ALBERT and BERT, read without TensorFlow."""
