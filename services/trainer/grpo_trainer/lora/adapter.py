"""Put an adapter on a model: the model keeps its class and is frozen, the adapter's parameters are trained.

PEFT injects its layers into the model; a `PeftModel` around it would hide the decoder, on which the output head relies.
The adapter has the model's dtype. Under bfloat16 DeepSpeed keeps float32 masters of the adapter, so that small updates
are not lost, and the forward pass rounds as a rollout server does.
"""

import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import peft
import torch
from peft.tuners.lora import Linear
from peft.tuners.lora.layer import ParamWrapper
from torch import nn
from transformers.pytorch_utils import Conv1D

from ..config.lora import ALL_LINEAR, LoraConfig
from ..errors import UsageError
from .files import read_adapter
from .merging import ADAPTER, LowRankDelta, adapted_layers, checkpoint_name

log = logging.getLogger(__name__)

SAVED_PREFIX = "base_model.model."
"""Before every name in PEFT's files."""
HINT = "name linear layers in model.lora.target_modules, and fused experts in model.lora.target_parameters"


class Adapter:
    """The adapter of a model, a new one or that of `config.adapter`.

    Args:
        model: changed in place; not yet sharded by an engine, though ZeRO-3 may have loaded it in shards.
        base_name: name or folder of the model's checkpoint, for the adapter's configuration.
        seed: of the new adapter's random half A; B is zero, so that the model computes what it did.

    Raises UsageError when a target matches nothing, is no linear layer, or is the output head, and when the adapter to
    start from has another shape.
    """

    def __init__(self, model: nn.Module, config: LoraConfig, *, base_name: str, seed: int):
        self.model = model
        self._config = peft.LoraConfig(
            r=config.r,
            lora_alpha=config.alpha,
            target_modules=linear_layers(model)
            if config.target_modules == ALL_LINEAR
            else of_text_alone(model, config.target_modules),
            target_parameters=config.target_parameters or None,
            lora_dropout=config.dropout,
            use_rslora=config.use_rslora,
            base_model_name_or_path=base_name,
            task_type="CAUSAL_LM",
        )
        self._inject(seed)
        self.layers = adapted_layers(model)
        self._check_targets(config)
        if config.adapter is not None:
            self._take_over(config.adapter)

    def _inject(self, seed: int) -> None:
        # Every rank draws the same numbers, whatever it drew while the model was loaded.
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            torch.default_generator.manual_seed(seed)
            warnings.simplefilter("ignore")  # PEFT warns of targets that match nothing: an error here
            try:
                peft.inject_adapter_in_model(self._config, self.model, adapter_name=ADAPTER)
            except (ValueError, TypeError) as error:
                raise UsageError(f"model.lora does not fit the model: {error}", hint=HINT) from error
        if self._config.rank_pattern:
            # PEFT takes names of the experts' layers before transformers 5 for fused experts, at twice the rank.
            fused = ", ".join(sorted(self._config.target_parameters))
            raise UsageError(f"PEFT takes some of model.lora.target_modules for the parameters {fused}", hint=HINT)

    def _check_targets(self, config: LoraConfig) -> None:
        for name, layer in self.layers.items():
            if not isinstance(layer, Linear | ParamWrapper):
                kind = type(layer.get_base_layer()).__name__
                raise UsageError(f"model.lora targets {name} of type {kind}, which is no linear layer", hint=HINT)
        head = self.model.get_output_embeddings()
        if any(layer is head for layer in self.layers.values()):
            raise UsageError("model.lora targets the output head, whose weight the trainer reads directly", hint=HINT)
        wanted = [f"{name}.weight" for name in config.target_modules] if isinstance(config.target_modules, list) else []
        for target in [*wanted, *config.target_parameters]:
            if not any(name == target or name.endswith(f".{target}") for name in self.layers):
                shown = target.removesuffix(".weight") if target in wanted else target
                raise UsageError(f"model.lora targets {shown}, which matches nothing in the model", hint=HINT)
        if config.target_modules == ALL_LINEAR:
            of_decoder = {id(tensor) for tensor in self.model.get_decoder().parameters()}
            frozen = {
                name: tensor
                for name, tensor in self.base_tensors().items()
                if name not in self.layers and id(tensor) in of_decoder
            }
            # ZeRO-3 shards the parameter itself.
            missed = [name for name, tensor in frozen.items() if len(getattr(tensor, "ds_shape", tensor.shape)) > 2]
            if missed:
                log.warning(
                    "model.lora.target_modules all-linear leaves out %d fused parameters, such as %s; to train them, "
                    "add them to model.lora.target_parameters and start the rollout servers without --enable-lora",
                    len(missed),
                    min(missed),
                )

    def _take_over(self, folder: Path) -> None:
        """Copy the adapter of `folder`. Raises UsageError when it is another adapter than the run file describes."""
        saved_config, saved = read_adapter(folder)
        own_config, own = self.saved_config(), self.tensors()
        base, ours = saved_config.get("base_model_name_or_path"), own_config["base_model_name_or_path"]
        if base and Path(base).name != Path(ours).name:
            log.warning("the adapter %s was trained on %s, and model.name_or_path is %s", folder, base, ours)
        for name in ("lora_alpha", "use_rslora"):
            if saved_config.get(name, False) != own_config[name]:
                raise UsageError(
                    f"the adapter {folder} has {name} {saved_config.get(name)}, and model.lora {own_config[name]}",
                    hint="describe the adapter to start from in model.lora",
                )
        shapes, own_shapes = ({name: list(t.shape) for name, t in tensors.items()} for tensors in (saved, own))
        different = sorted(name for name in shapes.keys() | own_shapes if shapes.get(name) != own_shapes.get(name))
        if different:
            name = different[0]
            raise UsageError(
                f"the adapter {folder} differs from model.lora in {len(different)} tensors: {name} is "
                f"{shapes.get(name, 'absent')} there and {own_shapes.get(name, 'absent')} here",
                hint="describe the adapter to start from in model.lora: r, target_modules and target_parameters",
            )
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(saved[name])

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the adapter's parameters by the names of PEFT's files."""
        return {
            SAVED_PREFIX + name.replace(f".{ADAPTER}.", "."): parameter
            for name, parameter in self.model.named_parameters()
            if is_adapter(name)
        }

    def base_tensors(self) -> dict[str, torch.Tensor]:
        """Return the model's own parameters by the names of its checkpoint, without tied names."""
        return {
            checkpoint_name(name): parameter
            for name, parameter in self.model.named_parameters()
            if not is_adapter(name)
        }

    def deltas(self) -> dict[str, LowRankDelta]:
        """Return what the adapter adds to the model's parameters, by the names of its checkpoint."""
        return {name: LowRankDelta(layer) for name, layer in self.layers.items()}

    def merged_state(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Return the whole model with the adapter added, in `dtype`; for a model that no engine shards.

        Buffers that a checkpoint holds are included; those of integers keep their dtype.
        """
        deltas, saved = self.deltas(), self.model.state_dict().keys()
        buffers = {
            checkpoint_name(name): buffer.to(dtype) if buffer.is_floating_point() else buffer
            for name, buffer in self.model.named_buffers()
            if name in saved and not is_adapter(name)
        }
        return buffers | {
            name: (deltas[name].added_to(tensor) if name in deltas else tensor.detach()).to(dtype)
            for name, tensor in self.base_tensors().items()
        }

    def saved_config(self) -> dict[str, Any]:
        """Return the contents of PEFT's adapter_config.json."""
        plain: dict[str, Any] = json.loads(json.dumps(self._config.to_dict(), default=sorted))
        return plain | {"inference_mode": True}

    @contextmanager
    def comparing(self, *, switched_off: bool = False) -> Iterator[None]:
        """Compute logprobs that are compared with others: without dropout; `switched_off`: those of the model below."""
        dropouts = [layer.lora_dropout for layer in self.layers.values()]
        before = [dropout.training for dropout in dropouts]
        for dropout in dropouts:
            dropout.eval()
        if switched_off:
            self._enable(enabled=False)
        try:
            yield
        finally:
            if switched_off:
                self._enable(enabled=True)
            for dropout, training in zip(dropouts, before, strict=True):
                dropout.train(training)

    def _enable(self, *, enabled: bool) -> None:
        for layer in self.layers.values():
            layer.enable_adapters(enabled)


def of_text_alone(model: nn.Module, targets: str | Sequence[str]) -> str | list[str]:
    """Return `targets`; where some of these names are layers of a vision tower, too, which is frozen, the whole names
    of the others."""
    if isinstance(targets, str):
        return targets
    of_text = {*model.get_decoder().modules(), model.get_output_embeddings()}
    matched = [
        (name, module in of_text)
        for name, module in model.named_modules()
        if any(name == target or name.endswith(f".{target}") for target in targets)
    ]
    return list(targets) if all(inside for _, inside in matched) else [name for name, inside in matched if inside]


def linear_layers(model: nn.Module) -> list[str]:
    """Return the names of all linear layers of the decoder.

    PEFT's own `all-linear` also reaches the fused experts and the router of some families, at several ranks.
    """
    decoder = set(model.get_decoder().modules())
    return [
        name for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D) and module in decoder
    ]


def is_adapter(name: str) -> bool:
    """Whether a parameter in memory belongs to an adapter."""
    return ".lora_" in name


def is_b(name: str) -> bool:
    """Whether a parameter in memory is the B of an adapter, which begins as zero."""
    return ".lora_B." in name


def keep_adapter_only(_module: nn.Module, state: dict[str, Any], _prefix: str, _metadata: Mapping[str, Any]) -> None:
    """Remove the frozen model from a state dict, under all names of a tied tensor: a hook for a checkpoint."""
    for name in [name for name in state if not is_adapter(name)]:
        del state[name]
