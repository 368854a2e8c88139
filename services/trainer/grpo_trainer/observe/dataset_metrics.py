"""The metrics of a step by dataset, for a run with several."""

from collections.abc import Container, Iterable, Sequence

from ..algorithm.distillation import teacher_metrics
from ..algorithm.estimators.statistics import reward_metrics
from ..algorithm.scores import accuracy
from ..algorithm.sequences import Group
from .metrics import optional


def dataset_metrics(
    groups: Sequence[Group], names: Iterable[str], *, taught: Container[str] = frozenset()
) -> dict[str, float]:
    """Return share, rewards and accuracy of the groups of each dataset, and what their teacher finds of those that are
    `taught`, as `data/<name>/…`.

    `share` is of the groups that are trained on. Everything else is absent when the step has no group of the dataset.
    """
    metrics: dict[str, float] = {}
    for name in names:
        of_dataset = [group for group in groups if group.row.dataset == name]
        totals = [[episode.total for episode in group.episodes] for group in of_dataset]
        found = {"share": len(of_dataset) / len(groups), **optional("accuracy", accuracy(of_dataset))}
        if of_dataset and name in taught:
            found |= teacher_metrics(of_dataset)
        metrics |= {f"data/{name}/{key}": value for key, value in (found | reward_metrics(totals)).items()}
    return metrics
