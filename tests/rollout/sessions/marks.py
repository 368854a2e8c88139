"""Mark the tests that ask vLLM's serving objects in their own process."""

import pytest

# vLLM takes seconds to import, and its dependencies warn about each other.
IN_PROCESS = [
    pytest.mark.vllm,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.xdist_group("session families"),
]
