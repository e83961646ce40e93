"""Pictures into a tensor model and classes out of it."""
