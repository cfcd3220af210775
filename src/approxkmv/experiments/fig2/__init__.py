"""Figure 2: how far the entries fall behind the n-th largest, BERT."""
