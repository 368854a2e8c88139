"""Typed HTTP clients."""
