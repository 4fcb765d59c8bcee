"""headrace: plan, rehearse and run distributed GNN training on the cluster people have."""

__version__ = "0.1.0"
