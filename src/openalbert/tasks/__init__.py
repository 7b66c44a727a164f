"""Tasks: examples, metrics and files of GLUE, SQuAD, RACE and custom tables."""
