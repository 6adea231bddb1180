#!/usr/bin/env bash
# Writes requirements/lock*.txt: the versions that pip chooses today for pyproject.toml, as
# constraints (names and versions only). requirements/lock.txt is for Python 3.12 to 3.14,
# requirements/lock-py311.txt for Python 3.11. Run it after changing a dependency.
#
#   bash scripts/lock.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

# write_lock PYTHON: resolves anew, without the old lock, and installs nothing.
write_lock() {
  local python=$1 file
  file=$(lock_file "$(python_version "$python")")
  say "resolving $file with $python"
  "$python" -m pip install --quiet --quiet --disable-pip-version-check --dry-run \
    --ignore-installed --report - --editable ".[compile,cpu,dev,gguf,hub,plots,ray]" | "$python" -c '
import json, re, sys

print("# Written by scripts/lock.sh; pip constraints. Change pyproject.toml, not this file.")
for item in sorted(
    json.load(sys.stdin)["install"], key=lambda item: item["metadata"]["name"].lower()
):
    name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
    if name != "paxkv":
        print(name + "==" + item["metadata"]["version"])
' >"$file.new"
  mv "$file.new" "$file"
}

write_lock "$(find_newest_python)"
if python311=$(find_python 3.11); then
  write_lock "$python311"
else
  say "no Python 3.11 here: $(lock_file 3.11) stays as it is"
fi
