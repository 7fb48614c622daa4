"""Words of ranks set by hand."""

SLOT = "Rank of layer {} · {}"
SLOT_INFO = "of {}; by the policy {}"
HANDLE = "Drag it, or press the arrow keys, to set this rank by hand. A click selects another bar."
UNDO, REDO, RELEASE, CLEAR = "Undo", "Redo", "Reset to policy", "Clear all"
BY_HAND = (
    "What changed against the policy: {hand} set by hand, {others} others moved by the policy to "
    "keep the budget. "
    "Predicted energy kept {before} → {after}."
)
OVERRIDE_HELP = (
    "Type a rank into the table, or drag the mark on a bar, to fix it by hand; the policy divides "
    "what is left among the others."
)
ANOTHER_FORM = "another form"
OTHER_FORM = (
    "Layer {layer} has its {part} in another form than {form}. A rank of {name} in a recipe's "
    "overrides chooses this one."
)
