"""The pretraining objectives: n-gram masking and sentence order (paper, sections 3.1 and 4.1)."""
