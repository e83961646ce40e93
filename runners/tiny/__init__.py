"""Tiny models with known answers, bundled with the runners, and the programs that made them."""
