"""What TRL and ms-swift call a setting → its name here, where it is another: what a hint offers for an unknown key.

Their tables say it (trl_options.py, swift_options.py); here are names of theirs that no option of `trl grpo` and
`swift rlhf` has.
"""

from collections.abc import Iterator

from .peer_options import PeerOptions
from .swift_options import MS_SWIFT
from .trl_options import TRL

ELSEWHERE = {
    "cliprange": "algorithm.epsilon",
    "early_stopping_patience": "checkpoint.patience",
    "kl_coef": "algorithm.beta",
    "lr": "optimizer.learning_rate",
    "num_processes": "deepspeed.nproc_per_node",
}
"""Options of launchers, callbacks and other algorithms."""


def _names(peer: PeerOptions) -> Iterator[tuple[str, str]]:
    rows = {**peer.computed, **peer.settings}
    for option, (setting, _) in rows.items():
        yield option, setting
    for option, now in peer.older.items():
        if now in rows:
            yield option, rows[now][0]


OTHER_NAMES = {
    option: setting
    for option, setting in [*_names(MS_SWIFT), *_names(TRL), *ELSEWHERE.items()]
    if option != setting.rpartition(".")[2]
}
