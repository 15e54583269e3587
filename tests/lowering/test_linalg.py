"""Linear algebra equals CPU."""
