"""Models behind HTTP: continuous batching, the routes, the page."""
