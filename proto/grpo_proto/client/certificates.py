"""Which authorities a client believes."""

import os
import ssl

import certifi


def trusted_certificates() -> ssl.SSLContext:
    """Those of the file that SSL_CERT_FILE names, for servers with an authority of their own, else the usual ones."""
    return ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE") or certifi.where())
