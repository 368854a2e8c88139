"""Push to every model family, and write docs/model-families.md: `python -m tests.rollout.families.matrix FAMILY …`.

Without names all families. One process, one engine after the other; results are JSON lines on standard output. The exit
status is 1 when a family is wrong.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    import torch

    from grpo_trainer.engine.policy import Policy

    from .models import Family

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_PLUGINS": "grpo_rollout", "OMP_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "0",
}  # fmt: skip
FP32_BOUND, BF16_MEAN_BOUND = 1e-4, 0.02
CURES = {
    "pack_experts_anew": "qwen3_moe",
    "pack_heads_anew": "qwen2",
    "load_sinks_in_place": "gpt_oss",
    "one_by_one": "gpt_oss",
}
"""Each cure of `family_cures.py`, and a family that is wrong without it."""
PAGE = Path(__file__).parents[3] / "docs/model-families.md"


@dataclass(frozen=True)
class Row:
    """Differences are between logprobs that the server reports and the trainer's own, over all sampled tokens."""

    family: str
    dtype: str
    as_loaded: float
    pushed: float
    pushed_mean: float
    before_the_push: float
    """Between the policy before and what is served after the push: what a push that did nothing would show."""
    restored: bool
    """Whether a push of the first weights brought back the first answers, to the bit."""
    probed: bool
    without: dict[str, str | None]
    """The errors of pushes without a cure that the family needs."""
    in_graphs: bool = False
    """Whether the engine computed in CUDA graphs."""

    @property
    def right(self) -> bool:
        near = self.pushed <= FP32_BOUND if self.dtype == "float32" else self.pushed_mean <= BF16_MEAN_BOUND
        noticed = None not in self.without.values()
        return near and self.restored and self.probed and noticed and self.before_the_push > 0.1


def try_family(
    name: str,
    family: "Family",
    folder: Path,
    *,
    device: "torch.device | str" = "cpu",
    cures: Sequence[str] = (),
    eager: bool = True,
) -> Row:
    """`device`: of the trainer's forward pass. `cures`: push without each of them, too; the last push is a whole one,
    whatever the others did."""
    from .in_process import differences, engine, policy_of, push, sampled_logprobs
    from .models import save_model

    folders = [save_model(family, folder / name / str(seed), seed=seed) for seed in (1, 2)]
    first, second = (policy_of(place, family, device) for place in folders)
    with engine(folders[0], family, eager=eager) as llm:
        in_graphs = llm.llm_engine.vllm_config.compilation_config.cudagraph_mode.name != "NONE"
        at_first, as_loaded = sampled_logprobs(llm), differences(llm, first)
        probed = push(llm, second, folders[1], session=1)
        pushed, before = differences(llm, second), differences(llm, first)
        without = {
            cure: push_without(cure, llm, first, folders[0], session=10 + number) for number, cure in enumerate(cures)
        }
        probed = push(llm, first, folders[0], session=20) and probed
        restored = sampled_logprobs(llm) == at_first
    return Row(
        name,
        str(family.dtype).removeprefix("torch."),
        as_loaded=as_loaded.max().item(),
        pushed=pushed.max().item(),
        pushed_mean=pushed.mean().item(),
        before_the_push=before.max().item(),
        restored=restored,
        probed=probed,
        without=without,
        in_graphs=in_graphs,
    )


def push_without(cure: str, llm: Any, policy: "Policy", folder: Path, *, session: int) -> str | None:
    """Push without one of the cures. Returns the error that the push ends with."""
    from grpo_rollout import family_cures

    from .in_process import call, push

    nothing = (lambda model, tensors: tensors) if cure == "one_by_one" else (lambda model: {})
    with patch.object(family_cures, cure, nothing):
        try:
            push(llm, policy, folder, session=session)
        except RuntimeError as error:
            call(llm, "recover", session)
            return str(error)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*")
    options = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    from .models import FAMILIES

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.families or [name for name, family in FAMILIES.items() if family.can_be_tried]:
            cures = [cure for cure, needed_by in CURES.items() if needed_by == name]
            row = try_family(name, FAMILIES[name], Path(folder), cures=cures)
            rows.append(row)
            print(json.dumps(asdict(row) | {"right": row.right}), flush=True)
    if not options.families:
        write_page(rows)
    return 0 if all(row.right for row in rows) else 1


def write_page(rows: list[Row]) -> None:
    from .models import FAMILIES

    """A family that was not tried this time keeps the row of the run that tried it."""
    text, _, table = PAGE.read_text().partition("<!-- table -->")
    rows_before = [line.split("|")[:8] for line in table.splitlines() if line.startswith("| ")]
    before = {cells[1].strip(): "|".join(cells) + "|" for cells in rows_before}
    lines = (text + "<!-- table -->").splitlines()
    lines += ["", "| family | particular | dtype | as loaded | after a push | mean | verdict | shared prefixes |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    by_name = {row.family: row for row in rows}
    for name, family in FAMILIES.items():
        what = family.what or "–"
        dtype = str(family.dtype).removeprefix("torch.")
        if (row := by_name.get(name)) is None:
            why = family.not_here or f"not tried: it needs {family.needs}"
            pushed = before.get(name) or f"| {name} | {what} | {dtype} | – | – | – | {why} |"
        else:
            verdict = "equal" if row.right else "**wrong**"
            figures = f"{row.as_loaded:.1g} | {row.pushed:.1g} | {row.pushed_mean:.1g}"
            pushed = f"| {name} | {what} | {dtype} | {figures} | {verdict} |"
        lines.append(f"{pushed} {shared_prefixes(name, family)} |")
    PAGE.write_text("\n".join(lines) + "\n")


def shared_prefixes(name: str, family: "Family") -> str:
    """How far the gradient is from that of padded rows, in float32; `off` for a family that does not share."""
    from grpo_trainer.engine.prefix_sharing import SHARING_FAMILIES
    from tests.trainer.made_forests import gradient_difference

    shares = family.config().model_type in SHARING_FAMILIES
    return f"{gradient_difference(name):.1g}" if shares else "off"


if __name__ == "__main__":
    sys.exit(main())
