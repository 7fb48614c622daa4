"""Access of PEFT to the linear modules inside low-rank modules, by the names of the family."""

import sys
from collections import Counter
from collections.abc import Collection
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D

_TUNER = "peft.tuners.lora.model"
_QKV = frozenset({"q_proj", "k_proj", "v_proj"})
# Names of fused matrices in the families, and the names of their parts in compressed layers
_JOINT = dict.fromkeys(("c_attn", "query_key_value", "qkv_proj", "Wqkv"), _QKV) | {
    "gate_up_proj": frozenset({"gate_proj", "up_proj"})
}


def register_with_peft() -> None:
    """Let LoRA accept `target_modules` by the names of the dense family, and by default if none are
    set.

    PEFT finds modules by class, and defaults by model_type. If PEFT was imported, the lookup
    replaces the names of low-rank modules by those of the linear modules inside (`q_proj` by
    `q_proj.down`, `q_proj.up`). The config of an adapter stores the replaced names, so it loads
    without this function.
    """
    tuner = getattr(sys.modules.get(_TUNER), "LoraModel", None)
    prepare = getattr(tuner, "_prepare_adapter_config", None)
    if prepare is None or getattr(prepare, "knows_low_rank", False):
        return

    def prepared(self: Any, peft_config: Any, model_config: dict[str, Any]) -> Any:
        family = str(model_config.get("model_type")).removeprefix("lowrank_")
        chosen = prepare(self, peft_config, {**model_config, "model_type": family})
        if chosen.target_modules and not isinstance(chosen.target_modules, str):
            chosen.target_modules = with_inner_linears(self.model, chosen.target_modules)
        return chosen

    prepared.knows_low_rank = True  # type: ignore[attr-defined]
    tuner._prepare_adapter_config = prepared  # type: ignore[union-attr]


def with_inner_linears(network: nn.Module, names: Collection[str]) -> set[str]:
    """Replace the names of low-rank modules by those of the linear modules inside.

    Linear modules that several projections share are left out, because an adapter merged into a
    projection would change the others.
    """
    named = list(network.named_modules(remove_duplicate=False))
    holders = Counter(id(part) for _, module in named for part in module.children())
    exchanged = set(names)
    leaves = {path.rpartition(".")[2] for path, _ in named}
    for joint in exchanged & _JOINT.keys():
        exchanged |= _JOINT[joint] & leaves
    for name in tuple(exchanged):
        matched = {path: module for path, module in named if f".{path}".endswith(f".{name}")}
        parts = {
            f"{path}.{leaf}"
            for path, module in matched.items()
            for leaf, part in module.named_children()
            if _linear(part) and holders[id(part)] == 1
        }
        if parts:
            exchanged -= {name}
            exchanged |= parts | {path for path, module in matched.items() if _linear(module)}
    return exchanged


def _linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | Conv1D)
