# shellcheck shell=bash
# Sourced by run.sh, test.sh and compile.sh: finds Python, detects the accelerator, makes
# environments.
# Needs nothing but bash, Python (with venv and ensurepip) and pip's access to packages.

say() { printf '[%4ds] %s\n' "$SECONDS" "$*"; }

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# Newest first. Each has wheels of everything that pyproject.toml names.
supported_pythons=(3.14 3.13 3.12 3.11)

# find_python VERSION: prints the path of a Python of that version, or fails. A name on PATH
# may be a shim that fails, so a candidate counts only if it runs and has venv and ensurepip.
find_python() {
  local version=$1 candidate
  local check="import sys, venv, ensurepip; print(sys.executable if '%d.%d' % sys.version_info[:2] == '$version' else '')"
  for candidate in \
    "python$version" \
    "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python \
    "/usr/bin/python$version" "/usr/local/bin/python$version" "/opt/homebrew/bin/python$version" \
    python3 python; do
    candidate=$("$candidate" -c "$check" 2>/dev/null) || continue
    if [[ -n $candidate ]]; then
      printf '%s\n' "$candidate"
      return 0
    fi
  done
  return 1
}

find_newest_python() {
  local version
  for version in "${supported_pythons[@]}"; do
    find_python "$version" && return 0
  done
  fail "no Python of ${supported_pythons[*]} was found that runs 'import venv, ensurepip'." \
    "Install one (on Debian and Ubuntu: python3 and python3-venv)."
}

# usable_python FOLDER: prints the Python of the environment in FOLDER if that is whole, else
# the newest that can make one.
usable_python() {
  if [[ ! -e $1.incomplete ]] && "$1/bin/python" -c 'import pip' 2>/dev/null; then
    printf '%s\n' "$1/bin/python"
  else
    find_newest_python
  fi
}

python_version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }

has_nvidia_gpu() {
  [[ -n $(nvidia-smi -L 2>/dev/null) ]] || compgen -G '/proc/driver/nvidia/gpus/*' >/dev/null
}

# Prints cuda13 for drivers that can run it (580 and later), else cuda12.
cuda_extra() {
  local driver=""
  driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1) || true
  if [[ -z $driver && -r /proc/driver/nvidia/version ]]; then
    driver=$(grep -oE '[0-9]{3}\.[0-9.]+' /proc/driver/nvidia/version | head -n 1) || true
  fi
  if [[ ${driver%%.*} =~ ^[0-9]+$ ]] && ((${driver%%.*} >= 580)); then echo cuda13; else echo cuda12; fi
}

# A TPU VM shows its chips on the PCI bus: vendor Google, and the ids of TPU v2 to v7.
has_tpu() {
  local folder
  for folder in "${1:-/sys/bus/pci/devices}"/*; do
    [[ -r $folder/vendor && $(<"$folder/vendor") == 0x1ae0 ]] || continue
    case $(<"$folder/device") in
      0x0027 | 0x0056 | 0x005e | 0x0062 | 0x0063 | 0x006f | 0x0076) return 0 ;;
    esac
  done
  return 1
}

# Prints the extra of pyproject.toml that jax needs here; nothing for a CPU.
accelerator_extra() {
  if has_nvidia_gpu; then cuda_extra; elif has_tpu; then echo tpu; fi
}

# lock_file VERSION: prints the file of pinned versions for this Python.
lock_file() {
  if [[ $1 == 3.11 ]]; then echo requirements/lock-py311.txt; else echo requirements/lock.txt; fi
}

# make_environment FOLDER PYTHON EXTRAS: FOLDER holds the project, editable, with EXTRAS
# (comma-separated). Does nothing where FOLDER/installed says that this is so already: that
# file holds the extras and what else the installation was made from, and is written last.
make_environment() {
  local folder=$1 python=$2 extras=$3 stamp=$1/installed
  if ! environment_is_current "$stamp" "$extras"; then
    if command -v flock >/dev/null; then # a second script waits, then finds the work done
      exec 9>"$folder.lock"
      flock 9
    fi
    environment_is_current "$stamp" "$extras" || install_environment "$folder" "$python" "$extras"
    exec 9>&-
  fi
}

# environment_is_current STAMP EXTRAS
environment_is_current() {
  local stamp=$1 extra
  [[ -r $stamp ]] && "${stamp%/*}/bin/python" -c '' 2>/dev/null || return 1
  [[ $(tail -n +2 "$stamp") == "$(made_from "${stamp%/*}")" ]] || return 1
  for extra in ${2//,/ }; do
    [[ ,$(head -n 1 "$stamp"), == *",$extra,"* ]] || return 1
  done
}

# made_from FOLDER: what an installation depends on, the place of the checkout included.
made_from() {
  printf '%s\n' "$PWD"
  cat pyproject.toml "$(lock_file "$(python_version "$1/bin/python")")"
}

# install_environment FOLDER PYTHON EXTRAS. An interrupted one leaves FOLDER.incomplete, and
# the next call then starts afresh.
install_environment() {
  local folder=$1 python=$2 extras=$3 stamp=$1/installed lock
  if [[ -e $folder.incomplete ]] || ! "$folder/bin/python" -m pip --version >/dev/null 2>&1; then
    say "making $folder with $("$python" --version) ($python)"
    rm -rf "$folder"
    touch "$folder.incomplete"
    "$python" -m venv "$folder"
  fi
  lock=$(lock_file "$(python_version "$folder/bin/python")")
  if [[ -r $stamp ]]; then extras=$(merged_extras "$(head -n 1 "$stamp")" "$extras"); fi
  touch "$folder.incomplete"
  rm -f "$stamp"
  say "installing paxkv[$extras] into $folder as pinned in $lock; takes a minute"
  if ! "$folder/bin/python" -m pip install --disable-pip-version-check --progress-bar off \
    --constraint "$lock" --editable ".[$extras]" 2>&1 | tee "$folder.log" | show_large_parts; then
    grep -v '^WARNING' "$folder.log" | tail -n 30 >&2
    fail "pip could not install paxkv[$extras] into $folder; its last lines are above, all of" \
      "them in $folder.log. Check the network and the free disk space (1.5 GB), then run this again."
  fi
  printf '%s\n%s\n' "$extras" "$(made_from "$folder")" >"$stamp.new"
  mv "$stamp.new" "$stamp"
  rm -f "$folder.incomplete"
  say "$folder is ready"
}

# Of pip's output, what takes long, with the time.
show_large_parts() {
  local line
  while IFS= read -r line; do
    case $line in
      *"Downloading "*" MB)") say "  ${line##*Downloading }" ;;
      *"Using cached "*" MB)") say "  ${line##*Using cached }" ;;
      "Installing collected packages"*) say "  unpacking" ;;
    esac
  done
}

# merged_extras A B: the union of two comma-separated lists.
merged_extras() { printf '%s\n' "${1//,/$'\n'}" "${2//,/$'\n'}" | sort -u | paste -sd, -; }
