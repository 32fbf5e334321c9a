"""The search for single problems: rounds of moves that share a pool of good answers."""
