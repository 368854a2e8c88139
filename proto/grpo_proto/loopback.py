"""Which addresses only this machine can reach."""

import ipaddress


def is_loopback(name: str | None) -> bool:
    """Whether an address, or the host name of a URL, always means this machine.

    Looks nothing up: a name other than `localhost` is not loopback, whatever it resolves to today. None and the empty
    name mean all interfaces.
    """
    name = name or ""
    if name.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False
