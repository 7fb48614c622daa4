"""Words of a plan that is projected onto another model."""

WHAT_IF = "What if: the sizes of another model with these shares"
SHAPE, CONTEXT, CONFIG = "Model", "Tokens in the cache", "Or its config.json"
NO_CONTEXT = "'Tokens in the cache' is {}. Type a whole number from 1 on."
CONFIG_INFO = "pasted; it takes the place of the model above"
HELP = (
    "Every layer of {model} ({layers} layers) keeps of each component, and of its cache, what the "
    "layers of this plan at the same relative depth keep. Sizes alone, in bfloat16: nothing is "
    "known of its answers, and activations are not counted."
)
UNCHANGED = " It has no {}: that part of the plan changes nothing."
HEAD = ("", "dense", "with these shares")
PARAMETERS, WEIGHTS = "parameters", "weights"
CACHE, BOTH = "KV cache of {} tokens", "both"
FITS = "fits in {} GB"
YES, NO = "yes", "no"
