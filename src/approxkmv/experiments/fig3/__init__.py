"""Figure 3: the largest ratio c of every head, GPT-1 and RoBERTa."""
