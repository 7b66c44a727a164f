"""The paper's tables and its figure: variants of a run, trained, measured and compared with the paper's numbers."""
