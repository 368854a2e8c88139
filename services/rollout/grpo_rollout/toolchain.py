"""Look for what vLLM compiles with on a GPU before it is imported: Triton would fail minutes later."""

import os
import shutil
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def missing_tools() -> list[str]:
    """Return what to install before this machine can compile vLLM's kernels; nothing where vLLM is built for a CPU."""
    try:
        on_cpu = version("vllm").endswith("+cpu")
    except PackageNotFoundError:  # the import says it
        return []
    return [] if on_cpu else compilers_lacking(Path(sysconfig.get_paths()["include"]))


def compilers_lacking(include: Path) -> list[str]:
    """`include`: the folder of this Python's headers. Triton takes CC, gcc or clang; torch.compile CXX or g++."""
    found = {
        "gcc": any(map(shutil.which, filter(None, (os.environ.get("CC"), "gcc", "clang")))),
        "g++": any(map(shutil.which, filter(None, (os.environ.get("CXX"), "g++", "clang++")))),
        f"the headers of Python ({include / 'Python.h'})": (include / "Python.h").is_file(),
    }
    return [name for name, is_there in found.items() if not is_there]
