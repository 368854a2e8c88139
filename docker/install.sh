#!/bin/sh
# install.sh ENVIRONMENT cpu|gpu|any PINS.txt [OPTION …]: installs the hash-checked pins and nothing else.
# Wheels in /wheels come before any package index. Do they hold every pin, no index is asked.
set -eu
environment=$1 variant=$2 pins=$3
wheels=${WHEELS:-/wheels}
shift 3

set -- --python "$environment/bin/python" --require-hashes --no-deps --compile-bytecode --find-links "$wheels" "$@" -r "$pins"
if ! uv pip install --quiet --no-index "$@" 2>/dev/null; then
  if [ "$variant" = cpu ] && ! ls "$wheels"/torch-*.whl >/dev/null 2>&1; then
    set -- "$@" --torch-backend=cpu
  fi
  uv pip install "$@"
fi

if [ "$variant" = cpu ] && uv pip list --python "$environment/bin/python" | grep -i '^nvidia-'; then
  echo "error: a CUDA package came into the CPU environment" >&2
  exit 1
fi
