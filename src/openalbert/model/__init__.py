"""The ALBERT model: configuration, embedding, layers with cross-layer sharing, and heads."""
