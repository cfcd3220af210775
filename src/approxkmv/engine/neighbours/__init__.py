"""Near pairs: how they are found, and what was missed."""
