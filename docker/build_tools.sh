#!/bin/sh
# build_tools.sh ENVIRONMENT PINS.txt: makes the environment and installs the hash-checked pins with pip. They build an
# image and do not come into it. Wheels in /wheels come before any package index, as in install.sh.
set -eu
environment=$1 pins=$2
wheels=${WHEELS:-/wheels}

python3 -m venv "$environment"
set -- "$environment/bin/python" -m pip --no-cache-dir --quiet install --require-hashes --no-deps --find-links "$wheels" -r "$pins"
"$@" --no-index 2>/dev/null || "$@"
