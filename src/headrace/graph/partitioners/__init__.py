"""Graph partitioners behind one interface."""
