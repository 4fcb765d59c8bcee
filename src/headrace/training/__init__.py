"""What learns: reference models and the loops that train them on batches."""
