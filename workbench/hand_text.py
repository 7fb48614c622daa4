"""Words of ranks set by hand."""

SLOT = "Rank of layer {} · {}"
SLOT_INFO = "of {}; the policy alone gives {}. Drag the mark on its bar, or use its arrow keys"
UNDO, REDO, RELEASE, CLEAR = "Undo", "Redo", "Reset to policy", "Clear all"
BY_HAND_NONE = "No rank is set by hand: the policy alone has chosen. Click a bar to select it."
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
