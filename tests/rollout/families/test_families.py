"""Three families through a push: dense and tied, experts, gpt_oss. `make families` has all of them.

Dense and untied is what the runs in tests/e2e push after each step.
"""

import json
from typing import Any

import pytest

from grpo_trainer.engine.family import IMAGE_FAMILIES
from grpo_trainer.engine.model import TRIED_FAMILIES
from tests.rollout.families.matrix import CURES, PAGE
from tests.rollout.families.models import FAMILIES
from tests.warm_python import warm_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300), pytest.mark.xdist_group("engines")]
ROWS = ("qwen2", "qwen3_moe", "gpt_oss")
FAILS_WITH = {
    "pack_experts_anew": "a layer does not serve what was pushed: model.layers.0.mlp.experts",
    "pack_heads_anew": "a layer does not serve what was pushed: lm_head",
    "load_sinks_in_place": "nothing was loaded into model.layers.0.attn",
    "one_by_one": "nothing was loaded into model.layers.0.mlp.experts",
}


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """All three, and a push without each cure, in one process: it imports vLLM once."""
    folder = tmp_path_factory.mktemp("families")
    result = warm_vllm.run("-m", "tests.rollout.families.matrix", *ROWS, folder=folder, timeout_s=280.0)
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == len(ROWS), result.stderr[-4000:]
    return {line["family"]: line for line in lines}


@pytest.mark.parametrize("family", ROWS)
def test_what_is_served_after_a_push_is_what_was_pushed(matrix: dict[str, dict[str, Any]], family: str):
    assert matrix[family]["right"], matrix[family]


@pytest.mark.parametrize("cure", CURES)
def test_a_push_that_would_serve_something_else_fails_and_names_the_layer(matrix: dict[str, dict[str, Any]], cure: str):
    assert FAILS_WITH[cure] in (matrix[CURES[cure]]["without"][cure] or "")


def test_the_trainer_knows_which_families_have_been_tried():
    rows = [[cell.strip() for cell in line.split("|")] for line in PAGE.read_text().splitlines()]
    equal = [cells[1] for cells in rows if cells[7:8] == ["equal"]]
    assert set(TRIED_FAMILIES) == {FAMILIES[name].config().model_type for name in equal}


def test_the_page_has_a_row_for_every_family():
    text, _, of_images = PAGE.read_text().partition("\n## Images\n")
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    seen = [line.split("|")[1].strip() for line in of_images.splitlines() if line.startswith("| ")]
    assert rows == ["family", *FAMILIES]
    assert sorted(name for row in seen[1:] for name in row.split(", ")) == sorted(IMAGE_FAMILIES)
    assert "**wrong**" not in text
