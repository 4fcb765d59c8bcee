"""What simulations and plans return."""
