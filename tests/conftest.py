"""How the tests are spread over processes, and where their seconds went."""

import gc
import os
from collections import Counter
from collections.abc import Iterator

import pytest

NUM_SLOWEST = 10

LONG_GROUPS = (
    *("stack", "members", "network", "engine", "engines", "ray"),
    *("tests/deploy/chart/test_start_trainer.py", "tests/reward/test_properties.py", "tests/proto/test_connection.py"),
)
"""They begin first: at the end, one of them alone would be waited for.

Most of them share engines. Without faults four are alive at most: one each of `stack` and `engines`, a pair of
`engine`. With them alone six: two each of `stack` and `members`, one each of `network` and `engine`; of 24 GiB of
memory 5 stay free.
"""


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test without an `xdist_group` may share fixtures of its module, so its file is its group."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.relative_to(item.config.rootpath).as_posix()))
    items.sort(key=_place)


def pytest_collection_finish() -> None:
    """Takes what was imported and collected out of the search for garbage, which took most of a second of any test."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # libraries say what they take for leaks at the end of the process


def _place(item: pytest.Item) -> int:
    marker = item.get_closest_marker("xdist_group")
    assert marker is not None
    return LONG_GROUPS.index(marker.args[0]) if marker.args[0] in LONG_GROUPS else len(LONG_GROUPS)


@pytest.fixture(autouse=True)
def environment_as_found() -> Iterator[None]:
    """Puts back the environment variables that a test has changed: the next test in this process may be of any file.

    Not those that fixtures of a wider scope have set. What is unchanged is not written: threads of the libraries may
    read it meanwhile.
    """
    before = dict(os.environ)
    yield
    now = os.environ.keys() | before.keys()
    for name in now - {"PYTEST_CURRENT_TEST"}:
        if name not in before:
            del os.environ[name]
        elif os.environ.get(name) != before[name]:
            os.environ[name] = before[name]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    terminalreporter.section(f"{NUM_SLOWEST} slowest files")
    for name, duration_s in seconds.most_common(NUM_SLOWEST):
        terminalreporter.write_line(f"{duration_s:7.1f} s  {name}")
