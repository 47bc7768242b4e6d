"""The timing model: chips, simulator, recordings, predictions and their validation."""
