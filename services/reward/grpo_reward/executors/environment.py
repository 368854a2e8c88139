"""What the processes that run other people's code get of the server's environment, and what they cannot take."""

import ctypes
import os
from collections.abc import Mapping

from ..sandbox.run import SANDBOX_VARIABLE

_NAMES = {
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE",
    "CUDA_VISIBLE_DEVICES", SANDBOX_VARIABLE,
}  # fmt: skip
KEYS_OF_BUILT_IN = ("JUDGE_API_KEY", "REWARD_MODEL_API_KEY")
"""What `judge` and `reward_model` call others with. No code of a plugin runs in their processes."""
_PREFIXES = ("LC_", "PYTHON", "OMP_", "MKL_", "OPENBLAS_")

PR_SET_DUMPABLE, PR_CAPBSET_DROP = 4, 24
_READING_CAPABILITIES = {
    "SYS_MODULE": 16, "SYS_RAWIO": 17, "SYS_PTRACE": 19, "SYS_ADMIN": 21, "PERFMON": 38, "BPF": 39,
}  # fmt: skip
"""Each of them is a way to the memory of a hidden process, PERFMON and SYS_ADMIN on newer kernels only."""
_libc = ctypes.CDLL(None, use_errno=True)


def worker_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The variables that finding programs, libraries and models takes, and `extra`: no key, no password."""
    known = {name: value for name, value in os.environ.items() if name in _NAMES or name.startswith(_PREFIXES)}
    return known | dict(extra)


def hide_this_process() -> None:
    """Its memory and its `/proc/PID/environ`, which holds the token, cannot be read by a process of the same user."""
    _libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def give_up_reading_other_processes() -> None:
    """Give up root's right to read hidden processes as well, for this process and its children."""
    for capability in _READING_CAPABILITIES.values():
        _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # so that executing something does not bring it back
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    rights = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; first those below 32, then the others
    if _libc.capget(header, rights) == 0:
        for capability in _READING_CAPABILITIES.values():
            for kind in range(3):
                rights[3 * (capability // 32) + kind] &= ~(1 << capability % 32)
        _libc.capset(header, rights)
