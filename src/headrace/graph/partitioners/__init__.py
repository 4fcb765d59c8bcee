"""Who owns which node: partitioners behind one interface."""
