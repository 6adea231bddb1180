"""Compiles the kernels ahead of time for chips that this machine does not have.

TPU and GPU compilers run on any machine: `targets` names the chips, `cases` the shapes,
`programs` puts an op and a case together, `measure` compiles and says what came out.
"""
