"""Rows of a task from files and datasets."""
