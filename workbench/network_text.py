"""What the page says of the picture of the network."""

NETWORK = "The network with these ranks"
NETWORK_HELP = (
    "Every block is a component of a layer, the first layer at the bottom; its area is what the "
    "budget counts (parameters or KV cache): grey is removed, the rest is kept. Point at a "
    "block for its numbers, click to select it."
)
PARAMETERS, CACHED = "parameters", "bytes of KV cache per token"
