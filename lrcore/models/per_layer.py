"""Access to configs whose layers differ in size (`per_layer_config` of transformers)."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig

PER_LAYER_FIELD = "per_layer_config"
DENSE_SIZES_KEY = "sizes"  # key in `lowrank` of an export: the sizes of the dense model's layers


def has_per_layer_sizes(config: "PretrainedConfig") -> bool:
    """Return True if the sizes differ by layer."""
    return bool(getattr(config, "is_heterogeneous", False))


def layer_values(config: "PretrainedConfig", name: str) -> list[Any]:
    """Return the values of a config field in all layers; [] if the field does not exist.

    A field with the same value in all layers is returned once. transformers refuses to read a field
    that differs by layer from the main config.
    """
    configs = list(config.per_layer_config) if has_per_layer_sizes(config) else [config]
    return [getattr(c, name) for c in configs if getattr(c, name, None) is not None]


def sizes_by_layer(config: "PretrainedConfig") -> dict[int, dict[str, Any]] | None:
    """Return the fields that differ from the main config, by layer; None without such an entry.

    An empty entry has a meaning: without it, some families apply other sizes to their layers.
    """
    sizes = config.to_dict().get(PER_LAYER_FIELD)
    return None if sizes is None else {int(index): dict(fields) for index, fields in sizes.items()}
