"""Ahead-of-time compilation for chips that are not here: whole steps, many programs.

`pallas_kernels.aot` compiles one op at a time; this adds the model's step, one child
process per target, and the table of what came out.
"""
