"""seccomp: which system calls a program may make, and with which arguments.

A list of what is allowed, since a list of what is refused is never complete: what the standard library needs to
compute, to read files and to run threads. Not on it are sockets (but for pairs of streams, without an address and
without descriptors in a message), new processes, signals to others, changes of files,
and whatever lasts longer than the program or is shared with others (leases and locks of files, watches, shared memory).

Run by the launcher: only the standard library, no import from the rest of the package.
"""

import ctypes
import os
import platform
import struct

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
CLONE_THREAD = 0x00010000
EPERM, ENOSYS = 1, 38
FIRST_NEW_CALL = 424
"""From here on all machines have the same numbers, and libraries ask for what an older kernel does not know."""

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_COLUMN = {"x86_64": 0, "aarch64": 1}

# Name: the number on x86_64 and on aarch64; −1 where there is no such call. The frequent ones first.
ALLOWED = {
    "read": (0, 63), "write": (1, 64), "futex": (202, 98), "mmap": (9, 222), "munmap": (11, 215), "brk": (12, 214),
    "close": (3, 57), "fstat": (5, 80), "newfstatat": (262, 79), "lseek": (8, 62), "madvise": (28, 233),
    "stat": (4, -1), "lstat": (6, -1), "statx": (332, 291), "statfs": (137, 43), "fstatfs": (138, 44),
    "access": (21, -1), "faccessat": (269, 48), "faccessat2": (439, 439),
    "readlink": (89, -1), "readlinkat": (267, 78), "getdents": (78, -1), "getdents64": (217, 61),
    "getcwd": (79, 17), "chdir": (80, 49), "fchdir": (81, 50), "umask": (95, 166),
    "pread64": (17, 67), "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66),
    "preadv": (295, 69), "pwritev": (296, 70), "preadv2": (327, 286), "pwritev2": (328, 287),
    "dup": (32, 23), "dup2": (33, -1), "dup3": (292, 24), "close_range": (436, 436),
    "pipe": (22, -1), "pipe2": (293, 59), "eventfd2": (290, 19),
    "poll": (7, -1), "ppoll": (271, 73), "select": (23, -1), "pselect6": (270, 72),
    "epoll_create": (213, -1), "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, -1),
    "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441),
    "recvfrom": (45, 207), "recvmsg": (47, 212),
    "shutdown": (48, 210), "getsockname": (51, 204), "getpeername": (52, 205), "getsockopt": (55, 209),
    "mprotect": (10, 226), "mremap": (25, 216), "msync": (26, 227), "arch_prctl": (158, -1),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133), "sigaltstack": (131, 132), "pause": (34, -1),
    "restart_syscall": (219, 128), "alarm": (37, -1), "getitimer": (36, 102), "setitimer": (38, 103),
    "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "gettimeofday": (96, 169), "time": (201, -1), "times": (100, 153), "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123), "sched_getscheduler": (145, 120), "sched_getparam": (143, 121),
    "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126), "getpriority": (140, 141),
    "getcpu": (309, 168), "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178),
    "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177),
    "getresuid": (118, 148), "getresgid": (120, 150), "getgroups": (115, 158),
    "getpgrp": (111, -1), "getpgid": (121, 155), "getsid": (124, 156),
    "getrlimit": (97, 163), "getrusage": (98, 165), "sysinfo": (99, 179), "uname": (63, 160), "getrandom": (318, 278),
    "set_tid_address": (218, 96), "set_robust_list": (273, 99), "get_robust_list": (274, 100), "rseq": (334, 293),
    "futex_waitv": (449, 449), "wait4": (61, 260), "waitid": (247, 95), "exit": (60, 93), "exit_group": (231, 94),
}  # fmt: skip
CLONE, TGKILL, PRLIMIT64 = (56, 220), (234, 131), (302, 261)
OPEN, OPENAT = (2, -1), (257, 56)
SOCKETPAIR, SENDTO = (53, 199), (44, 206)
_STREAMS = (0x1, 0x801, 0x80001, 0x80801)
"""SOCK_STREAM, with SOCK_NONBLOCK and SOCK_CLOEXEC: a datagram could be sent to a socket of somebody's by its path."""
IOCTL, FCNTL = (16, 29), (72, 25)
_REQUESTS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS and TIOCGWINSZ, which ask whether it is a terminal; FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
_DESCRIPTORS = (0, 1, 2, 3, 4, 1030)
"""F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC."""


def refuse_system_calls(*, also_writing: bool) -> str | None:
    """Needs no_new_privs. Returns None, or why it could not be done.

    With `also_writing` no file can be opened for writing, for want of Landlock.
    """
    machine = platform.machine()
    if machine not in _COLUMN:
        return f"seccomp: no table of system calls for {machine}"
    program = _filter(machine, also_writing=also_writing)
    code = ctypes.create_string_buffer(b"".join(program))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0) != 0:
        return f"seccomp: {os.strerror(ctypes.get_errno())}"
    return None


def _filter(machine: str, *, also_writing: bool) -> list[bytes]:
    """The instructions. Each part either decides or leaves the number of the call in the accumulator."""
    column, own = _COLUMN[machine], os.getpid()
    program = [_load(4), _if_equal(_AUDIT_ARCH[machine], 1), _return(0x80000000), _load(0)]
    if machine == "x86_64":  # the numbers of x32, another way to the same calls
        program += [_if_at_least(0x40000000), _return(0x80000000)]
    for numbers in ALLOWED.values():
        if numbers[column] >= 0:
            program += [_if_equal(numbers[column], 0, 1), _allow()]
    program += _allow_with(FCNTL[column], 1, _DESCRIPTORS) + _allow_with(IOCTL[column], 1, _REQUESTS)
    program += _allow_with(TGKILL[column], 0, (own,)) + _allow_with(PRLIMIT64[column], 0, (0, own))
    program += _allow_with(SOCKETPAIR[column], 1, _STREAMS) + _allow_without_address(SENDTO[column])
    program += [_if_equal(CLONE[column], 0, 4), _load_argument(0), _if_any_bit(CLONE_THREAD, 0, 1), _allow(), _refuse()]
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC if also_writing else 0
    for number, flags in ((OPEN[column], 1), (OPENAT[column], 2)):
        if number >= 0:
            program += [_if_equal(number, 0, 4), _load_argument(flags), _if_any_bit(writing, 0, 1), _refuse(), _allow()]
    # glibc falls back from clone3 to clone, whose flags can be looked at, and from openat2 to openat.
    return [*program, _if_at_least(FIRST_NEW_CALL), _refuse(ENOSYS), _refuse()]


def _allow_with(number: int, argument: int, values: tuple[int, ...]) -> list[bytes]:
    """A call that is allowed with one of these arguments only."""
    tests = [_if_equal(value, len(values) - position) for position, value in enumerate(values)]
    return [_if_equal(number, 0, len(values) + 3), _load_argument(argument), *tests, _refuse(), _allow()]


def _allow_without_address(sendto: int) -> list[bytes]:
    """To the other end only: both halves of the pointer to an address have to be 0."""
    halves = [_load_argument(4), _if_equal(0, 0, 2), _load(16 + 8 * 4 + 4), _if_equal(0, 1)]
    return [_if_equal(sendto, 0, len(halves) + 2), *halves, _refuse(), _allow()]


# The instructions of the filter language that are needed. Jumps count instructions from the next one.


def _load(offset: int) -> bytes:
    return struct.pack("HBBI", 0x20, 0, 0, offset)


def _load_argument(argument: int) -> bytes:
    """Its lower half."""
    return _load(16 + 8 * argument)


def _if_equal(value: int, then: int, otherwise: int = 0) -> bytes:
    return struct.pack("HBBI", 0x15, then, otherwise, value)


def _if_at_least(value: int) -> bytes:
    return struct.pack("HBBI", 0x35, 0, 1, value)


def _if_any_bit(bits: int, then: int, otherwise: int = 0) -> bytes:
    return struct.pack("HBBI", 0x45, then, otherwise, bits)


def _return(value: int) -> bytes:
    return struct.pack("HBBI", 0x06, 0, 0, value)


def _allow() -> bytes:
    return _return(0x7FFF0000)


def _refuse(error: int = EPERM) -> bytes:
    return _return(0x00050000 | error)
