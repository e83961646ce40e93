"""The agent: talks to people and to a control plane, and decides what is run."""
