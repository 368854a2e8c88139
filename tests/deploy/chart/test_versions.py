"""The versions the chart and its pages name are those of the code."""

import re
import tomllib
from importlib.metadata import version

import yaml

from grpo_proto import PROTOCOL_VERSION

from .rendering import CHART, ROOT

CHART_FILE = yaml.safe_load((CHART / "Chart.yaml").read_text())
RELEASES = (ROOT / "docs" / "releases.md").read_text()


def test_the_chart_installs_this_version() -> None:
    assert CHART_FILE["appVersion"] == version("grpo-trainer") == version("grpo-reward")


def test_the_protocol_is_the_one_spoken() -> None:
    assert CHART_FILE["annotations"]["grpo-services/protocol-version"] == str(PROTOCOL_VERSION)
    assert re.search(r"`PROTOCOL_VERSION`[^*]*\*\*(\d+)\*\*", RELEASES).group(1) == str(PROTOCOL_VERSION)  # type: ignore[union-attr]


def test_ray_is_the_one_pinned() -> None:
    extras = tomllib.loads((ROOT / "services/reward/pyproject.toml").read_text())["project"]["optional-dependencies"]
    pinned = next(line for line in extras["ray"] if line.startswith("ray==")).removeprefix("ray==")
    assert yaml.safe_load((CHART / "values.yaml").read_text())["reward"]["ray"]["version"] == pinned
