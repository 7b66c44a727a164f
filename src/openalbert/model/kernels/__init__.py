"""Fused linear maps and attention for GPUs, with Triton sources, and linear maps for CPUs."""
