#!/usr/bin/env bash
# Compiles every kernel for real TPUs and GPUs on a machine that has neither, and fails if a
# program spills registers, copies the pool or does not compile.
#
#   bash scripts/compile.sh [absl flags of experiments.compile_kernels]
#   bash scripts/compile.sh --target=v5e,h100 --cases=llama
#   bash scripts/compile.sh --environment_only
#
# Needs only Python and pip: makes .venv-compile on the first call (2 GB), apart from .venv
# since jax complains of the TPU and CUDA plugins wherever it finds no such chip.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

python=$(usable_python .venv-compile)
say "Python $(python_version "$python") ($python), compilers for TPU and GPU"
make_environment .venv-compile "$python" compile
if [[ ${1:-} == --environment_only ]]; then exit 0; fi

say "python -m experiments.compile_kernels $*"
exec .venv-compile/bin/python -m experiments.compile_kernels "$@"
