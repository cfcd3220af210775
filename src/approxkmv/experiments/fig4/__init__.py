"""Figure 4: the ratio c against the length of the context."""
