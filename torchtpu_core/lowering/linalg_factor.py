"""Matrix factorizations."""
