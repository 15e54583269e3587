"""Scripts that each print one table of ratios against a peer, measured in one run."""
