"""Fused linear maps and attention for GPUs, with Triton sources."""
