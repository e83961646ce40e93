"""One reader per model format; content decides, never the file name."""
