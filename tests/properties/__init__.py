"""Properties that hold for any input, searched by hypothesis; the same examples in every run."""
