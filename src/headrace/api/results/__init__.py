"""Result types of simulations, and notebook output."""
