"""docs/losses.md, made of the tables and the surrogates' own docstrings: `python -m tests.trainer.losses_page`."""

import inspect
from importlib import import_module
from pathlib import Path

from tests.trainer.trl_cases import CASES

from grpo_trainer.algorithm.skipping import may_skip
from grpo_trainer.algorithm.surrogates import CALLED_WITH, SURROGATES, reads_of
from grpo_trainer.algorithm.surrogates.reads import is_by_token
from grpo_trainer.config.algorithm import LOSS_TYPES, AlgorithmConfig
from grpo_trainer.parameters import parameters_of

PAGE = Path(__file__).parents[2] / "docs" / "losses.md"
READS = {
    "old": "π_old", "proximal": "π_prox", "behaviour": "μ", "reference": "π_ref", "entropy": "entropy",
    "corrects_mismatch": "corrects for μ itself",
}  # fmt: skip
HEAD = """# Losses

The presets of `algorithm.loss_type`. Each is a surrogate, the loss of a token, and a normaliser, its weight
([trainer](trainer.md#losses) has their sum and the normalisers). A preset also changes the defaults of some settings;
what the run file says comes first, and the resolved run file shows them. π is the policy, π_old the policy before the
first update of a generation batch (for a stale token the server's), μ what the server sampled with. "Equals TRL" counts
the cases in which loss, gradient and metrics are compared with TRL's trainer, to 1e-6 in float32 (VESPO: 1e-5, its
weight multiplies the rounding of a whole completion). The others are compared with their formula written out. "Head"
says how often an update computes the logits: in one pass where the loss of a token depends on that token alone, in two
where it does not, or where these settings make it depend on others: an entropy bonus, an `importance_sampling_mode` of
sequences, `off_policy_mask_threshold`, an `importance_sampling_level` other than `token`.

A setting that only one surrogate reads is a parameter of it, which `algorithm.params` sets; the table has the defaults:

```yaml
algorithm: {loss_type: sapo, params: {sapo_temperature_pos: 0.8, sapo_temperature_neg: 1.2}}
```

A surrogate of your own is a file, and has its parameters in the same place:
[CONTRIBUTING](../CONTRIBUTING.md#a-new-loss-estimator-or-normaliser).

"""


def page() -> str:
    """The page as it has to be."""
    rows = [
        "| `loss_type` | surrogate | normaliser | defaults | `params` | reads | samples of advantage 0 | head | "
        "equals TRL |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, preset in LOSS_TYPES.items():
        reading = reads_of(SURROGATES[preset.surrogate])
        read = ", ".join(word for field, word in READS.items() if getattr(reading, field))
        defaults = ", ".join(f"`{setting}` {value}" for setting, value in preset.settings.items())
        algorithm = AlgorithmConfig(loss_type=name)
        takes = parameters_of(inspect.signature(SURROGATES[preset.surrogate]), CALLED_WITH)
        params = ", ".join(f"`{parameter}` {takes[parameter].default}" for parameter in takes)
        skipped = "skipped" if may_skip(algorithm) else "computed"
        passes = "one pass" if is_by_token(SURROGATES[preset.surrogate], algorithm) else "two passes"
        cases = sum(case["loss_type"] == name for case in CASES.values())
        compared = f"{cases} case{'s' * (cases > 1)}" if cases else "–"
        rows.append(
            f"| `{name}` | `{preset.surrogate}` | `{preset.normaliser}` | {defaults or '–'} | {params or '–'} "
            f"| {read or '–'} | {skipped} | {passes} | {compared} |"
        )
    modules = {surrogate.__module__: import_module(surrogate.__module__) for surrogate in SURROGATES.values()}
    told = [f"## {name.rpartition('.')[2]}\n\n{module.__doc__}" for name, module in modules.items()]
    return HEAD + "\n".join([*rows, "", *told])


if __name__ == "__main__":
    PAGE.write_text(page())
