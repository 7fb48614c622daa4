"""Whether a dense model can go to a target at all, before anything is computed."""

from transformers import PreTrainedModel

from ..errors import InputError
from ..targets import TARGETS
from .gguf_fit import layer_facts
from .mla import checked_layers
from .stock import structural_reasons


def check_fits(network: PreTrainedModel, name: str) -> None:
    """Raise InputError where no ranks would let a target run this network, with the reason."""
    target = TARGETS[name]
    if target.format == "gguf":
        layer_facts(network)
    elif target.format == "mla":
        checked_layers(network)
    elif target.stock and (reasons := structural_reasons(network)):
        raise InputError(
            f"Target {name}: {reasons[0]}. Leave the target out; the folder then has its code."
        )
