"""Layer-wise full-neighbour inference over all nodes; activations are on disk."""
