#!/usr/bin/env bash
# make-venv.sh DIR: virtual environment with exactly the pinned dependencies. Run by make; safe to repeat.
set -euo pipefail
directory=$1
python=${PYTHON:-python3}

fail() { printf 'error: %s\n' "$1" >&2; exit 1; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
  fail "Python 3.11 or newer is needed; '$python' is not. Set PYTHON=/path/to/python3."

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  package=$("$python" -c 'import sys; print(f"python3.{sys.version_info.minor}-venv")')
  command -v apt-get >/dev/null || fail "'$python' has no venv module; install it with your distribution's package manager."
  if [ -z "${YES:-}${CI:-}" ]; then
    read -r -p "Debian package $package is missing. Install it? [y/N] " answer
    case $answer in [yY]*) ;; *) fail "install $package, or run again with YES=1" ;; esac
  fi
  echo "Installing $package"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends --no-remove "$package" >/dev/null
fi

started=$SECONDS
echo "Creating $directory with the pinned dependencies (about half a minute)"
rm -rf "$directory"
"$python" -m venv "$directory"
"$directory/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
touch "$directory/.ready"
echo "Ready after $((SECONDS - started)) s"
