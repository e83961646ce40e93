"""Side-by-side timings, each told as a ratio; `python -m benchmarks` runs all but the slow ones."""
