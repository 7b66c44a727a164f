"""Runs to look at: one offline page of curves and facts, for one run or several side by side."""
