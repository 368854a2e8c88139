"""What some model families need around vLLM's layerwise reload, so that they serve what was pushed.

Each function states what breaks without it in vLLM 0.32. `tests/rollout/families/` fails without any of them.
"""

import re
from collections.abc import Iterable, Iterator

import torch
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import layerwise
from vllm.platforms import current_platform

NamedTensor = tuple[str, torch.Tensor]
FUSED_EXPERTS = re.compile(r"(.*\.mlp\.experts)\.((?:gate_up|down)_proj(?:_bias)?)")


def pack_experts_anew(model: torch.nn.Module) -> None:
    """Have the experts packed at this reload as at the first load. Call it when a push begins. CPU only.

    Without it: a CPU engine packs experts in place of the parameters. A reload finds a kernel that is there already,
    skips the packing and copies plain weights into packed storage: the policy served is wrong, and nothing reports it.
    On a GPU the storage must stay, because CUDA graphs hold its address, and vLLM copies into it.
    """
    if not current_platform.is_cpu():
        return
    for module in model.modules():
        if isinstance(method := getattr(module, "quant_method", None), UnquantizedFusedMoEMethod):
            method.moe_kernel = None


def packed_heads(model: torch.nn.Module) -> dict[torch.nn.Module, object]:
    """Return what each output head is packed into, on a CPU; `pack_heads_anew` compares with it."""
    return {
        module: module.cpu_linear
        for module in model.modules()
        if isinstance(module, VocabParallelEmbedding) and hasattr(module, "cpu_linear")
    }


def pack_heads_anew(before: dict[torch.nn.Module, object]) -> None:
    """Pack the heads that the reload has not packed. Call it when a push ends.

    Without it: the reload packs an untied head, but not a head tied to the embedding, and sampling goes on with the old
    one.
    """
    for module, packed_before in before.items():
        if module.cpu_linear is packed_before:
            module.quant_method.process_weights_after_loading(module)


def load_sinks_in_place(model: torch.nn.Module) -> None:
    """Take attention sinks out of the reload: they are written where they are. Call it after the reload was opened.

    Without it: gpt_oss copies the sinks past the weight loader, onto the meta device, and the old sinks stay.
    """
    for module in model.modules():
        info = layerwise.LAYERWISE_INFO.get(module)
        if "sinks" in module._parameters and info is not None and info.can_load():
            layerwise._place_kernel_tensors(module, info)
            info.reset()


def one_by_one(model: torch.nn.Module, tensors: Iterable[NamedTensor]) -> Iterator[NamedTensor]:
    """Yield the experts of gpt_oss one by one, and all other tensors as they are.

    Without it: the experts of a layer come in one tensor, as in the checkpoint, and gpt_oss copies them past the weight
    loader, onto the meta device. Single experts go through the weight loader.
    """
    if type(model).__name__ != "GptOssForCausalLM":
        yield from tensors
        return
    for name, tensor in tensors:
        if match := FUSED_EXPERTS.fullmatch(name):
            for number, expert in enumerate(tensor):
                yield f"{match[1]}.{number}.{match[2]}", expert
        else:
            yield name, tensor
