"""The version, in a place that every part may ask without importing anything else."""

__version__ = "0.1.0"
