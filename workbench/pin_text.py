"""Words of the plan that is pinned, which others are held against."""

PIN, UNPIN = "Pin", "Unpin"
PINNED = "pinned plan"
PLAN = "{method}, {policy}, {ratio:.1%}"
PREDICTED = "pinned: predicted perplexity"
MEASURED = "pinned: actual perplexity"
PREDICTED_CHANGE = "{plan} · the plan on show: {change:+.2%}"
MEASURED_CHANGE = "the plan on show: {:+.2%} on the same tokens; a verdict needs a longer text"
BARS = (
    "Grey: the pinned plan, {plan}. In brackets: ranks more or less than it has. Most is gained by "
    "layer {more[0]} · {more[1]} ({more[2]:+d}), least by layer {less[0]} · {less[1]} "
    "({less[2]:+d})."
)
SAME = "The pinned plan has these very ranks."
OTHER_SLOTS = "The pinned plan, {plan}, has other components: grey is what uniform ranks keep."
