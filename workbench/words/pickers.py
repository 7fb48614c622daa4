"""Words of the lists of methods and policies."""

import lrcore

# The first entries of each list; the others follow under MORE. They are the methods and policies
# with the lowest perplexities in docs/choosing.md, and the simplest ones.
RECOMMENDED = {
    "method": ("a3", "modegpt", "fused", "latentllm", "care"),
    "policy": ("uniform", "probed", "waterfill", "energy", "mix"),
}
MORE = "More"
MEASURED_METHOD = "Measured with {policy}: perplexity {change}, {removed} of {budget} removed"
MEASURED_POLICY = "Measured with {method}: perplexity {change}, {removed} of {budget} removed"


def summaries(field: str) -> dict[str, str]:
    """Return a sentence by name of a method or a policy, recommended ones first."""
    rows = lrcore.list_methods() if field == "method" else lrcore.list_policies()
    by_name = {row["name"]: row["summary"] for row in rows}
    return {name: by_name[name] for name in (*RECOMMENDED[field], *by_name)}
