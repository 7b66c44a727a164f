"""Rows of files: read in chunks, and written with what was predicted."""
