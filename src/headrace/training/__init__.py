"""Model training: reference models, training loops, parameter servers, inference."""
