"""Figure 1: the largest ratio c of every head, BERT."""
