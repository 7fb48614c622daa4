"""Undo and redo of the settings of a page."""

from dataclasses import dataclass, replace

import lrcore

MAX_STEPS = 100


@dataclass(frozen=True)
class PlanHistory:
    """The settings of a page, and the settings before and after them, in order of time.

    gesture: number of the last gesture that changed the settings, see `assets/gestures.js`.
    is_restored: whether `present` was undone or redone after that gesture. replaced: the settings
    that undo or redo replaced, until the page reports `present`.
    """

    present: lrcore.Recipe
    past: tuple[lrcore.Recipe, ...] = ()
    future: tuple[lrcore.Recipe, ...] = ()
    gesture: int = 0
    is_restored: bool = False
    replaced: tuple[lrcore.Recipe, ...] = ()

    def record(self, recipe: lrcore.Recipe, gesture: int) -> "PlanHistory":
        """Return the history after the page reported its settings.

        All settings of one gesture are one step. Until the next gesture, settings that differ from
        those that were undone or redone are a report that was late. So are replaced settings,
        whose report may have the number of a later gesture.
        """
        if recipe == self.present:
            return replace(self, replaced=())
        is_late = gesture < self.gesture or (gesture == self.gesture and self.is_restored)
        if is_late or recipe in self.replaced:
            return self
        if gesture == self.gesture:
            return replace(self, present=recipe)
        past = (*self.past, self.present)[-MAX_STEPS:]
        return PlanHistory(recipe, past, gesture=gesture)

    def undo(self, gesture: int) -> "PlanHistory":
        """Return the history one step back; the same history if there is no step."""
        if not self.past:
            return self
        *past, previous = self.past
        return self._restored(previous, tuple(past), (self.present, *self.future), gesture)

    def redo(self, gesture: int) -> "PlanHistory":
        """Return the history one step forward; the same history if there is no step."""
        if not self.future:
            return self
        following, *future = self.future
        return self._restored(following, (*self.past, self.present), tuple(future), gesture)

    def _restored(
        self,
        present: lrcore.Recipe,
        past: tuple[lrcore.Recipe, ...],
        future: tuple[lrcore.Recipe, ...],
        gesture: int,
    ) -> "PlanHistory":
        before = *self.replaced, self.present
        replaced = tuple(recipe for recipe in before if recipe != present)
        return PlanHistory(present, past, future, gesture, is_restored=True, replaced=replaced)
