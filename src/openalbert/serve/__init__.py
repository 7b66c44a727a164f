"""Use trained models: fill in [MASK]."""
