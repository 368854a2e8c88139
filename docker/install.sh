#!/bin/sh
# install.sh ENVIRONMENT cpu|gpu|any PINS.txt: installs the hash-checked pins and nothing else.
# Wheels in /wheels come before any package index, so a folder of them is enough to build without a network.
set -eu
environment=$1 variant=$2 pins=$3

set -- --find-links /wheels
if [ "$variant" = cpu ] && ! ls /wheels/torch-*.whl >/dev/null 2>&1; then
  set -- "$@" --torch-backend=cpu
fi
uv pip install --python "$environment/bin/python" --require-hashes --no-deps --compile-bytecode "$@" -r "$pins"

if [ "$variant" = cpu ] && uv pip list --python "$environment/bin/python" | grep -i '^nvidia-'; then
  echo "error: a CUDA package came into the CPU environment" >&2
  exit 1
fi
