"""The compiled loops, the arrays they take, and their NumPy twins."""
