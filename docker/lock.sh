#!/bin/sh
# lock.sh UV: renews docker/requirements/*.txt, what each image holds. `make lock` runs it after requirements/cpu.txt:
# every image gets a subset of what the tests ran with. PIP_FIND_LINKS names a folder of wheels, as in the Makefile.
set -eu
uv=$1
cd "$(dirname "$0")/.."
cpu_torch=${PIP_FIND_LINKS:+--find-links=$PIP_FIND_LINKS}
cpu_torch=${cpu_torch:---torch-backend=cpu}

overrides=requirements/overrides.txt
compile() { # NAME.in → NAME.txt, with more options
  name=$1
  shift
  "$uv" pip compile --quiet --python-version 3.11 --no-header --no-annotate --generate-hashes \
    --override "$overrides" --no-emit-package deepspeed --no-emit-package grpo-proto \
    --no-emit-package grpo-reward --no-emit-package grpo-rollout --no-emit-package grpo-trainer \
    "$@" "docker/requirements/$name.in" -o "docker/requirements/$name.txt"
}

compile build
for name in reward rollout-cpu rollout-gpu trainer-cpu; do
  compile "$name" "$cpu_torch" --constraint requirements/cpu.txt
done
# torch for GPUs brings a triton and CUDA libraries of its own; everything else is as it was tested.
constraints=$(mktemp)
nccl=$(mktemp)
trap 'rm -f "$constraints" "$nccl"' EXIT
grep -oE '^[A-Za-z0-9._-]+==[^ ]+' requirements/cpu.txt | grep -vE '^(torch|triton)==' > "$constraints"
# Members of a weight group need the same NCCL: that of vLLM's image, which its Dockerfile names beside UV_OVERRIDE.
echo 'nvidia-nccl-cu13==2.30.7' > "$nccl"
overrides=$nccl
compile trainer-gpu --constraint "$constraints"
