"""The version, without any import."""

__version__ = "0.1.0"
