"""Requirements of a run on its rollout servers, whenever they come up."""

from dataclasses import dataclass, replace

from grpo_proto import PROTOCOL_VERSION, RolloutInfo
from grpo_proto.messages.weights import Kind, KvCache

from ..errors import TrainerError, UnavailableError
from .adapters import AdapterNeeds, choose_push_kind


@dataclass(frozen=True)
class Needs:
    """The requirements of this run on every server."""

    tokenizer: str
    max_tokens: int
    head_dtype: str
    """`model.head_dtype` of the run."""
    dtype: str | None = None
    """`model.dtype`, in which every tensor is pushed; None where an adapter is, which has its own."""
    one_rope_context: int | None = None
    """Longest context in which the policy's rotary embedding does not depend on the length; None for any length."""
    kv_cache: KvCache = "recompute"
    """`weights.kv_cache` of the run."""
    max_images: int = 0
    """Images of a prompt."""
    adapter: AdapterNeeds | None = None
    """None when every push is `full`."""

    def misfit(self, url: str, info: RolloutInfo) -> TrainerError | None:
        """Why this server cannot be used; None when it fits."""
        where = f"the rollout server {url}"
        if info.protocol_version != PROTOCOL_VERSION:
            return UnavailableError(
                f"{where} speaks protocol {info.protocol_version}, this trainer {PROTOCOL_VERSION}",
                hint="install the same release of grpo-services on both sides",
            )
        if info.tokenizer_fingerprint != self.tokenizer:
            return UnavailableError(
                f"{where} has another tokenizer ({info.tokenizer_fingerprint}) than the policy ({self.tokenizer})",
                hint=f"it serves {info.model}; start it with the model of model.name_or_path",
            )
        if info.max_model_len < self.max_tokens:
            return UnavailableError(
                f"{where} has a context of {info.max_model_len} tokens; prompt and completion need {self.max_tokens}",
                hint="raise its --max-model-len, or lower data.max_prompt_length or rollout.max_completion_length",
            )
        if info.max_images < self.max_images:
            takes = f"takes {info.max_images} images a prompt" if info.max_images else "takes no images"
            return UnavailableError(
                f"{where}, version {info.version}, {takes}; the rows have up to {self.max_images}",
                hint=f"""start it with --limit-mm-per-prompt '{{"image": {self.max_images}}}' and without """
                "--language-model-only",
            )
        if self.one_rope_context is not None and info.max_model_len > self.one_rope_context:
            return UnavailableError(
                f"{where} has a context of {info.max_model_len} tokens; beyond {self.one_rope_context} the rotary "
                "embedding of this model depends on the length, in another way there than in the trainer",
                hint=f"start it with --max-model-len {self.one_rope_context}",
            )
        if self.dtype is not None and info.dtype != self.dtype:
            return UnavailableError(
                f"{where} serves {info.dtype}; model.dtype, in which the weights are pushed, is {self.dtype}",
                hint=f"start it with --dtype {self.dtype}, or change model.dtype",
            )
        served = info.head_dtype or info.dtype
        if served != ("float32" if self.head_dtype == "float32" else info.dtype):
            return UnavailableError(
                f"{where} computes logits in {served}; model.head_dtype is {self.head_dtype}",
                hint=f"""start it with --hf-overrides '{{"head_dtype": "{self.head_dtype}"}}', or change """
                "model.head_dtype",
            )
        if self.kv_cache == "keep" and not info.keeps_kv_cache:
            return UnavailableError(
                f"{where}, version {info.version}, recomputes the KV cache at every push; weights.kv_cache is keep",
                hint="install the same release of grpo-services on both sides, or set weights.kv_cache to recompute",
            )
        return self.adapter.misfit(url, info) if self.adapter else None


def agreed(needs: Needs, infos: dict[str, RolloutInfo], adapter: AdapterNeeds | None) -> tuple[Needs, Kind]:
    """Return what every server has to fulfil, and what to push: the `adapter`, if the run has one and the servers
    that are up take it, or every weight.

    Raises UnavailableError for a server of another protocol, tokenizer or dtype, with too short a context or too long
    a one for `one_rope_context`, or too old for `kv_cache`, and UsageError for servers that cannot serve
    the adapter. A server that comes up later and does not fit gets neither weights nor traffic.
    """
    of_any_push = replace(needs, kv_cache="recompute", dtype=None)
    _refuse_misfits(of_any_push, infos)
    kind = choose_push_kind(infos, adapter)
    if kind == "lora":  # every version has keys of its own, whatever `kv_cache` is
        return replace(of_any_push, adapter=adapter), kind
    _refuse_misfits(needs, infos)
    return needs, kind


def _refuse_misfits(needs: Needs, infos: dict[str, RolloutInfo]) -> None:
    for url, info in infos.items():
        misfit = needs.misfit(url, info)
        if misfit is not None:
            raise misfit
