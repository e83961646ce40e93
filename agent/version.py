"""The one place that spells the version."""

VERSION = "0.1.0"
