"""Answers to questions on passages: from the scores of tokens to a span, and whether there is one at all."""
