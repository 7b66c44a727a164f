"""Complete runs as functions: settings for every preset, and the demo."""
