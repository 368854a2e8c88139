"""What Linux offers an unprivileged process to give up its rights, through system calls alone.

Run by the launcher, which has no site-packages: only the standard library, no import from the rest of the package.

- Namespaces: an empty network, and a process table in which nobody else exists. Containers often forbid them.
- Landlock: files can be read below the folders given, nothing can be written, no TCP.
- seccomp: no socket, no new process, no signal to others, no change of any file's name or rights.
- Limits on CPU time, memory and file size; no capability, and no way to get one back.

Each function returns None, or why it could not do its part.
"""

import ctypes
import os
import platform
import resource
import struct

_libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x08000000, 0x10000000, 0x20000000, 0x40000000
CLONE_THREAD = 0x00010000
PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 22, 24, 38
EPERM, ENOSYS = 1, 38

# System calls by machine: the number in the kernel's tables, absent where a machine has not got it.
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_REFUSED = {
    "x86_64": [
        41, 425, 57, 58, 59, 322,  # socket, io_uring_setup, fork, vfork, execve, execveat
        62, 200, 129, 297, 424, 434,  # kill, tkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_send_signal, pidfd_open
        101, 310, 311, 298, 321, 323,  # ptrace, process_vm_readv/writev, perf_event_open, bpf, userfaultfd
        272, 308, 165, 166, 161, 155,  # unshare, setns, mount, umount2, chroot, pivot_root
        248, 249, 250,  # add_key, request_key, keyctl
        90, 91, 268, 452, 92, 93, 94, 260,  # chmod and chown in all their forms
        82, 264, 316, 83, 258, 84, 87, 263,  # rename, mkdir, rmdir, unlink in all their forms
        86, 265, 88, 266, 133, 259, 76,  # link, symlink, mknod, truncate
        132, 235, 261, 280, 188, 189, 190, 197, 198, 199,  # times and extended attributes
        463, 466, 469,  # setxattrat, removexattrat, file_setattr
        141, 142, 144, 203, 314, 251,  # priority and scheduling, also of others
        29, 64, 68, 240,  # shared memory, semaphores and queues that would outlive the program
    ],
    "aarch64": [
        198, 425, 221, 281,
        129, 130, 138, 240, 424, 434,
        117, 270, 271, 241, 280, 282,
        97, 268, 40, 39, 51, 41,
        217, 218, 219,
        52, 53, 452, 54, 55,
        38, 276, 34, 35, 37, 36, 33, 45,
        88, 5, 6, 7, 14, 15, 16,
        463, 466, 469,
        140, 118, 119, 122, 274, 30,
        194, 190, 186, 180,
    ],
}  # fmt: skip
_CLONE = {"x86_64": 56, "aarch64": 220}
_TGKILL = {"x86_64": 234, "aarch64": 131}
_OPEN = {"x86_64": {2: 1, 257: 2}, "aarch64": {56: 2}}  # call → which argument has the flags
_PRLIMIT64 = {"x86_64": 302, "aarch64": 261}
_BY_SECOND_ARGUMENT = {
    # fcntl with F_SETOWN, F_SETSIG, F_SETOWN_EX; ioctl with FIOSETOWN, SIOCSPGRP: signals by way of a file
    "x86_64": {72: (8, 10, 15), 16: (0x8901, 0x8902)},
    "aarch64": {25: (8, 10, 15), 29: (0x8901, 0x8902)},
}
_CREAT, _CLONE3, _OPENAT2 = {"x86_64": 85}, 435, 437

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


def refuse_system_calls(*, also_writing: bool) -> str | None:
    """seccomp; needs no_new_privs. With `also_writing` no file can be opened for writing, for want of Landlock."""
    machine = platform.machine()
    if machine not in _AUDIT_ARCH:
        return f"seccomp: no table of system calls for {machine}"
    program = [_load(4), _if_equal(_AUDIT_ARCH[machine], 1), _return(0x80000000), _load(0)]
    if machine == "x86_64":  # the numbers of x32, another way to the same calls
        program += [_if_at_least(0x40000000), _return(0x80000000)]
    for number in _REFUSED[machine]:
        program += [_if_equal(number, 0, 1), _refuse(EPERM)]
    # glibc falls back to clone, whose flags can be looked at.
    program += [_if_equal(_CLONE3, 0, 1), _refuse(ENOSYS), _if_equal(_OPENAT2, 0, 1), _refuse(ENOSYS)]
    program += [_if_equal(_CLONE[machine], 0, 3), _load(16), _if_any_bit(CLONE_THREAD, 1), _refuse(EPERM), _load(0)]
    program += [_if_equal(_TGKILL[machine], 0, 3), _load(16), _if_equal(os.getpid(), 1), _refuse(EPERM), _load(0)]
    program += [_if_equal(_PRLIMIT64[machine], 0, 4), _load(16), _if_equal(0, 2), _if_equal(os.getpid(), 1)]
    program += [_refuse(EPERM), _load(0)]
    for number, commands in _BY_SECOND_ARGUMENT[machine].items():
        tests = [_if_equal(command, len(commands) - position) for position, command in enumerate(commands)]
        # command found: over the other tests and the jump, to the refusal
        program += [_if_equal(number, 0, len(commands) + 3), _load(24), *tests, _jump(1), _refuse(EPERM), _load(0)]
    if also_writing:
        flags = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
        for number, argument in _OPEN[machine].items():
            program += [
                _if_equal(number, 0, 3),
                _load(16 + 8 * argument),
                _if_any_bit(flags, 0, 1),
                _refuse(EPERM),
                _load(0),
            ]
        if machine in _CREAT:
            program += [_if_equal(_CREAT[machine], 0, 1), _refuse(EPERM)]
    program.append(_return(0x7FFF0000))
    code = ctypes.create_string_buffer(b"".join(program))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    return _reason("seccomp") if _libc.prctl(PR_SET_SECCOMP, 2, header, 0, 0) != 0 else None


# The six instructions of the filter language that are needed. Jumps count instructions from the next one.
def _load(offset: int) -> bytes:
    return struct.pack("HBBI", 0x20, 0, 0, offset)


def _if_equal(value: int, then: int, otherwise: int = 0) -> bytes:
    return struct.pack("HBBI", 0x15, then, otherwise, value)


def _if_at_least(value: int) -> bytes:
    return struct.pack("HBBI", 0x35, 0, 1, value)


def _if_any_bit(bits: int, then: int, otherwise: int = 0) -> bytes:
    return struct.pack("HBBI", 0x45, then, otherwise, bits)


def _jump(over: int) -> bytes:
    return struct.pack("HBBI", 0x05, 0, 0, over)


def _return(value: int) -> bytes:
    return struct.pack("HBBI", 0x06, 0, 0, value)


def _refuse(error: int) -> bytes:
    return _return(0x00050000 | error)


def _reason(what: str) -> str:
    return f"{what}: {os.strerror(ctypes.get_errno())}"
