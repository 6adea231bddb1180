#!/usr/bin/env bash
# Serves the seeded workload on the shipped model under every allocator and compares them.
#
#   bash scripts/run.sh [absl flags of experiments.serve]
#   bash scripts/run.sh --config.cache.block_size=32
#
# Needs only Python and pip: makes .venv on the first call, and nothing on later ones.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

accelerator=$(accelerator_extra)
python=$(usable_python .venv)
say "Python $(python_version "$python") ($python), jax for ${accelerator:-cpu}"
make_environment .venv "$python" "cpu,plots${accelerator:+,$accelerator}"

needs_config=true
for argument in "$@"; do
  case $argument in
    --config | --config=* | -config | -config=*) needs_config=false ;;
  esac
done
if $needs_config; then set -- --config=configs/serve.py "$@"; fi
say "python -m experiments.serve $*"
exec .venv/bin/python -m experiments.serve "$@"
