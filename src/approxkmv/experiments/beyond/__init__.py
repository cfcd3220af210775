"""Beyond the paper: other matrices, long contexts, counts and speed on the same heads."""
