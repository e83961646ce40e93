"""Runs models: formats, routes, one file per runtime, language and vision pipelines."""
