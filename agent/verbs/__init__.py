"""One file per verb that a control plane may send."""
