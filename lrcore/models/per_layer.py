"""Configs whose layers differ in size: `per_layer_config` of transformers."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig

UNEVEN = "per_layer_config"
DENSE_SIZES = "sizes"  # in `lowrank` of an export: what the dense model's layers have


def is_uneven(config: "PretrainedConfig") -> bool:
    """Whether some layers have sizes of their own."""
    return bool(getattr(config, "is_heterogeneous", False))


def values_of(config: "PretrainedConfig", name: str) -> list[Any]:
    """The values of a field in all layers, or the one that they share; empty where it is unknown.

    transformers refuses to read a field that differs by layer from the whole config.
    """
    configs = list(config.per_layer_config) if is_uneven(config) else [config]
    return [getattr(one, name) for one in configs if getattr(one, name, None) is not None]


def sizes_by_layer(config: "PretrainedConfig") -> dict[int, dict[str, Any]] | None:
    """The fields that layers have for themselves, by layer; None of a config that does not say.

    A family whose layers differ says of layers that are alike that none has any: without, it would
    give them other sizes.
    """
    sizes = config.to_dict().get(UNEVEN)
    return None if sizes is None else {int(index): dict(own) for index, own in sizes.items()}
