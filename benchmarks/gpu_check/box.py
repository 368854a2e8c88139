"""What this machine has. `python -m benchmarks.gpu_check.box` prints it as JSON.

The parent reads it from a child process: a CUDA context in the parent would hold memory of the GPU during every check.
"""

import importlib.util
import json
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import packages_distributions, version

import torch

from .check import Needs

PACKAGES = (
    "torch", "transformers", "deepspeed", "vllm", "flash_attn", "bitsandbytes", "triton", "peft",
    "grpo_rollout", "grpo_reward",
)  # fmt: skip


@dataclass(frozen=True)
class Box:
    gpus: Sequence[str]
    """Their names."""
    memory_gib: float
    """Of the smallest GPU; 0 without one."""
    cuda: str | None
    """The version that torch is built for."""
    versions: dict[str, str]
    """Of the packages that are installed here."""
    python: str = platform.python_version()
    system: str = platform.platform()

    def lacks(self, needs: Needs) -> str | None:
        """Return what of `needs` this machine does not have; None when it has all of it."""
        if needs.gpus > len(self.gpus):
            return f"needs {needs.gpus} GPU{'s' * (needs.gpus > 1)}, {self._gpus_here()}"
        if needs.memory_gib > self.memory_gib and needs.gpus:
            return f"needs {needs.memory_gib:g} GiB of GPU memory, here are {self.memory_gib:.0f}"
        if lacking := self.lacks_packages(needs):
            return lacking
        if needs.gpus and "vllm" in needs.packages and "cpu" in self.versions["vllm"]:
            return f"needs vLLM with CUDA, installed is {self.versions['vllm']}"
        return None

    def lacks_packages(self, needs: Needs) -> str | None:
        """The same of its packages alone, of which a trial takes a build for CPUs, too."""
        missing = [name for name in needs.packages if name not in self.versions]
        return f"needs {', '.join(missing)}, not installed" if missing else None

    def _gpus_here(self) -> str:
        if self.gpus:
            return f"here {'is' if len(self.gpus) == 1 else 'are'} {len(self.gpus)}"
        if self.cuda is None:
            return f"and torch {self.versions['torch']} is built without CUDA"
        return f"and torch, built for CUDA {self.cuda}, finds none"


def read_box() -> Box:
    found = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    return Box(
        gpus=[gpu.name for gpu in found],
        memory_gib=min((gpu.total_memory / 2**30 for gpu in found), default=0.0),
        cuda=torch.version.cuda,
        versions=versions_of(name for name in PACKAGES if importlib.util.find_spec(name)),
    )


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Return version and, where it is not the package's, the distribution's name: vLLM's builds have several."""
    known = packages_distributions()
    found = {}
    for package in packages:
        names = sorted(set(known.get(package, ())))
        if not names:  # it lies on PYTHONPATH: of our services, vLLM would find no plugin
            continue
        number = ", ".join(version(name) for name in names)
        others = [name for name in names if name.replace("-", "_") != package]
        found[package] = f"{number} ({', '.join(others)})" if others else number
    return found


if __name__ == "__main__":
    print(json.dumps(asdict(read_box())))
