"""Words of the curve of predicted perplexity over budgets."""

BUDGET_CURVE = "Perplexity against budget"
READ = "How to read it"
NO_PROBES = (
    "Predicted from probes of the slots, which policy probed measures: choose it above and press "
    "Run. Other policies of the method then have a curve too."
)
HELP = (
    "Predicted perplexity of this method and policy over all budgets; the band should hold nine of "
    "ten actual values. Dotted: the dense model. Thin: uniform ranks (grey), and other "
    "methods that were probed. Click a point to set the budget."
)
MEASURED = " Orange: runs of this model and method, filled by this policy; measured on {}."
