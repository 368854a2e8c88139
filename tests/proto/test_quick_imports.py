"""Garbage is collected seldom while large libraries are imported."""

import gc

import pytest

from grpo_proto.quick_imports import quick_imports


def test_what_an_import_makes_is_not_looked_through_at_once():
    looks = []
    gc.callbacks.append(lambda *look: looks.append(look))
    try:
        with quick_imports():
            kept = [[] for _ in range(20_000)]
            looks_inside = len(looks)
    finally:
        gc.callbacks.pop()
    assert len(kept) == 20_000
    assert looks_inside == 0


def test_an_import_that_fails_leaves_the_collector_as_it_was():
    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError), quick_imports():
        _ = 1 / 0
    assert gc.get_threshold() == before
