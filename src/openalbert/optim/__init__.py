"""Optimizers (LAMB, AdamW, Muon), learning-rate and depth schedules, and the budget of a run."""
