"""The certificate authorities that a client trusts."""

import os
import ssl

import certifi


def trusted_certificates() -> ssl.SSLContext:
    """The authorities in the file that SSL_CERT_FILE names, for servers with a private authority; else certifi's."""
    return ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE") or certifi.where())
