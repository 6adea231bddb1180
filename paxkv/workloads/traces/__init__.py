"""Readers of traces: one module a format, all of which give `TraceRow`s."""
