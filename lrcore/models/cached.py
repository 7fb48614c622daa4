"""Forward passes with a cache of keys and values, under the name that transformers gives it."""

from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from ..cancellation import unchecked

# of a network's forward, and of what it returns: "cache" from transformers 5.24 on
_NAMES = ("cache", "past_key_values")
CACHE_ARGUMENT = next(name for name in _NAMES if name in CausalLMOutputWithPast.__annotations__)


def cached(network: PreTrainedModel, tokens: Tensor, cache: Any, **options: Any) -> tuple[Any, Any]:
    """The network's output on tokens [b, t] after those of a cache, and the cache with them.

    cache: None at the first tokens. options: further arguments of the network's forward. A job that
    is cancelled stops before the network's next module.
    """
    given = {CACHE_ARGUMENT: cache, "use_cache": True, **options}
    with unchecked():  # a token takes thousands of functions, and is what speed is measured by
        out = network(input_ids=tokens, **given)
    return out, getattr(out, CACHE_ARGUMENT)
