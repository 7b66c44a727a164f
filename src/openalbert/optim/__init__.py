"""Optimizers (LAMB, AdamW, Muon), the learning-rate schedule, and the budget of a run."""
