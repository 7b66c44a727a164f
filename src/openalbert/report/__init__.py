"""Pages and model cards of runs: reading a run back, charts, error analysis."""
