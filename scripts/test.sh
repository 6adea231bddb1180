#!/usr/bin/env bash
# Runs every check and test: all of them on the newest Python found, and the kernel and
# end-to-end tests once more on Python 3.11 with the oldest jax that is supported. Compiles
# the kernels for TPUs and GPUs, which need not be there.
#
#   bash scripts/test.sh
#
# Needs only Python and pip: makes .venv, .venv-py311 and .venv-compile on the first call.
# One failing step does not stop the others; the exit code is 0 only if every step passed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

# What Python 3.11 runs: what depends on the version of jax, but for the interpreters of
# TPU and GPU kernels, which take minutes on jax 0.10.2 (run their tests by hand there).
tests_on_python311=(
  tests/pallas_kernels/move_blocks/test_cpu.py
  tests/pallas_kernels/move_blocks/test_move_blocks.py
  tests/pallas_kernels/paged_attention/test_against_reference.py
  tests/pallas_kernels/paged_attention/test_cpu.py
  tests/pallas_kernels/paged_attention/test_far.py
  tests/pallas_kernels/paged_attention/test_mutations.py
  tests/pallas_kernels/test_layout.py
  tests/pallas_kernels/test_numba_ffi.py
  tests/pallas_kernels/test_pool_in_place.py
  tests/pallas_kernels/test_sharding.py
  tests/pallas_kernels/write_kv/test_cpu.py
  tests/pallas_kernels/write_kv/test_tpu.py
  tests/pallas_kernels/write_kv/test_write_kv.py
  tests/paxkv/models/test_deepseek.py
  tests/paxkv/models/test_families.py
  tests/paxkv/test_differential.py
  tests/paxkv/test_gumbel_noise.py
  tests/paxkv/test_llm.py
  tests/paxkv/test_sampling.py
  tests/paxkv/test_step.py
  tests/paxkv/test_tier_serving.py
  tests/paxkv/test_transfer_programs.py
  tests/paxkv/test_transfers.py
)

summary=()
failures=0

# step NAME COMMAND...: runs it, and notes how it ended and how long it took.
step() {
  local name=$1 start=$SECONDS result=passed
  shift
  printf '\n'
  say "── $name"
  ("$@") || result=FAILED # a subshell, so that `fail` ends only this step
  if [[ $result == FAILED ]]; then failures=$((failures + 1)); fi
  summary+=("$(printf '%-6s %4d s  %s' "$result" $((SECONDS - start)) "$name")")
}

# run_pytest FOLDER ARGUMENT...: with the environment in FOLDER. On a CPU two processes share
# the work; an accelerator serves one process at a time. Tests that compile the same program
# share it through jax's compilation cache, which starts empty on each call.
run_pytest() {
  local folder=$1 processes=2
  shift
  if [[ -n $accelerator ]]; then processes=0; fi
  rm -rf ".cache/jax-tests$folder"
  JAX_COMPILATION_CACHE_DIR="$PWD/.cache/jax-tests$folder" \
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 \
    "$folder/bin/python" -m pytest --numprocesses="$processes" --dist=loadfile \
    --durations=10 -ra "$@"
}

accelerator=$(accelerator_extra)
python=$(usable_python .venv)
version=$(python_version "$python")
say "Python $version ($python), jax for ${accelerator:-cpu}"
make_environment .venv "$python" "cpu,dev,gguf,plots,ray${accelerator:+,$accelerator}"

step "ruff format" .venv/bin/ruff format --check .
step "ruff check" .venv/bin/ruff check .
step "pyrefly" .venv/bin/pyrefly check
step "import rules" .venv/bin/lint-imports
step "vulture" .venv/bin/vulture
step "tests, Python $version" run_pytest .venv
step "random operations on the scheduler" \
  .venv/bin/python -m tests.random_operations --operations=30000
step "the paper's figures, in short" .venv/bin/python -m experiments.paper --figure=all \
  --quick --fresh
step "kernels compile for TPUs and GPUs" bash scripts/compile.sh --subset

if [[ $version == 3.11 ]]; then
  note="Python 3.11 is the newest here, so its tests are those above."
elif python311=$(find_python 3.11); then
  step "environment of Python 3.11" make_environment .venv-py311 "$python311" \
    "cpu,gguf,test${accelerator:+,$accelerator}"
  step "kernel and end-to-end tests, Python 3.11" \
    run_pytest .venv-py311 --random-cases=20 "${tests_on_python311[@]}"
  note=""
else
  note="No Python 3.11 was found: its tests did not run."
fi

printf '\n'
say "summary"
printf '  %s\n' "${summary[@]}" ${note:+"$note"}
if ((failures)); then fail "$failures of ${#summary[@]} steps failed."; fi
say "all ${#summary[@]} steps passed"
