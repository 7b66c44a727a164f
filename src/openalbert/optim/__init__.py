"""How ALBERT learns: LAMB and AdamW, which parameters are decayed, the schedules and the budget of a run."""
