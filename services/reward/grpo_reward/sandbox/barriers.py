"""What Linux offers an unprivileged process to give up its rights, through system calls alone.

Run by the launcher, which has no site-packages: only the standard library, no import from the rest of the package.

- Namespaces: an empty network, and a process table in which nobody else exists. Containers often forbid them.
- Landlock: files can be read below the folders given, nothing can be written, no TCP.
- seccomp: `system_calls.py`.
- Limits on CPU time, memory and file size; no capability, and no way to get one back.

Each function returns None, or why it could not do its part.
"""

import ctypes
import os
import resource
import struct

_libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x08000000, 0x10000000, 0x20000000, 0x40000000
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_READ_FILE, _READ_DIR, _WRITE_FILE = 1 << 2, 1 << 3, 1 << 1


def enter_namespaces() -> str | None:
    """An own network and process table for the children of this process."""
    user, group = os.getuid(), os.getgid()
    if _libc.unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC) != 0:
        return _reason("unshare")
    try:
        for file, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{file}", "w") as mapping:
                mapping.write(text)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return None


def give_up_privileges() -> None:
    """No capability, also none of a namespace, and none back by executing something."""
    for capability in range(64):
        if _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break
    header = struct.pack("Ii", 0x20080522, 0)
    _libc.capset(header, bytes(24))
    if _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")


def limit(*, memory_bytes: int, cpu_s: int) -> None:
    """Nothing can be written to a file: the largest size is 0. No limit is above the one there is already."""
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, memory_bytes),
    ):
        there = resource.getrlimit(kind)[1]
        value = value if there == resource.RLIM_INFINITY else min(value, there)
        resource.setrlimit(kind, (value, value))


def restrict_files(readable: list[str]) -> str | None:
    """Landlock: only what is below `readable` can be read, `/dev/null` also written, nothing else."""
    version = _libc.syscall(_LANDLOCK_CREATE, None, 0, 1)
    if version < 1:
        return _reason("Landlock")
    files = (
        0x1FFF | (1 << 13 if version >= 2 else 0) | (1 << 14 if version >= 3 else 0) | (1 << 15 if version >= 5 else 0)
    )
    sizes = {1: 8, 2: 8, 3: 8, 4: 16, 5: 16}
    attributes = struct.pack("QQQ", files, 3, 3)[: sizes.get(version, 24)]
    ruleset = _libc.syscall(_LANDLOCK_CREATE, attributes, len(attributes), 0)
    if ruleset < 0:
        return _reason("Landlock")
    rules = [(path, _READ_FILE | _READ_DIR) for path in readable]
    rules += [("/dev/null", _READ_FILE | _WRITE_FILE), ("/dev/urandom", _READ_FILE)]
    for path, access in rules:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # not on this machine
        if not os.path.isdir(path):
            access &= ~_READ_DIR
        rule = struct.pack("=Qi", access, descriptor)
        failed = _libc.syscall(_LANDLOCK_ADD, ruleset, 1, rule, 0) != 0
        os.close(descriptor)
        if failed:
            return _reason("Landlock")
    failed = _libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0) != 0
    os.close(ruleset)
    return _reason("Landlock") if failed else None


def _reason(what: str) -> str:
    return f"{what}: {os.strerror(ctypes.get_errno())}"
