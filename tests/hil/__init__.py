"""Hardware in the loop: what this device can do, compared with what was promised for its board."""
