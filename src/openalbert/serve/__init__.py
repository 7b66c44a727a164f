"""A trained model answers: words for [MASK]."""
