"""Figure 5: time of exact over approximate attention on GloVe vectors."""
