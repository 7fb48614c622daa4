"""What the Allocation tab draws: bars, size and cost summary, live figures, survey."""

import asyncio
import math
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any

import gradio as gr

import lrcore

from ... import continuation_text, markup, numbers, saving_text, target_text, text
from ...figures.base import captioned
from ...figures.rank_bars import Bar, RankBars, rank_bars
from ...form import follows_rule, read_recipe, try_recipe, within_ranges, without_rule
from ...jobs import Unmeasured, start_analysis, start_survey, unmeasured_evidence
from ...keys import UNIFORM, policy_row, unmeasured
from ...live import MORE, Figure
from ...store import Store
from . import pin, survey


def draw_plan(store: Store, browser: gr.Request, *values: Any) -> tuple[Any, ...]:
    """Everything that a move of a slider redraws; the rule of thumb stays on or off."""
    within, said = within_ranges(values)
    turned = follows_rule(within) != follows_rule(values)
    return (*plan_shown(store, browser, within, said), True if turned else gr.skip())


def choose_context(store: Store, browser: gr.Request, tokens: int) -> None:
    """The context at which the size of the cache is told from now on."""
    store.shown.at_context(browser.session_hash, tokens)


def draw_plan_by_temperature(store: Store, browser: gr.Request, *values: Any) -> tuple[Any, ...]:
    """Touching the temperature means not to follow the rule of thumb any longer."""
    within, said = within_ranges(without_rule(values))
    return (*plan_shown(store, browser, within, said), follows_rule(within))


async def stream_figures(store: Store, browser: gr.Request) -> AsyncIterator[str]:
    """The live figures of what this browser shows, as they become known: of the last position of
    a slider, not of those before.
    """
    sent, live = None, store.live
    while (key := live.newest(browser.session_hash)) is not None:
        pinned = live.newest(pin.name_for(browser))
        beside = for_uniform(browser) if pinned is None else pin.name_for(browser)
        uniform = live.newest(beside)
        more = live.measures_more(browser.session_hash)
        figure, other = live.peek(key), live.peek(uniform)
        cells = {} if figure is None else {key: markup.actual(key, figure, more)}
        cells |= continued(store, browser, key)
        if figure is not None and other is not None:
            cells |= beside_cells(key, pinned, figure, other)
        if cells and cells != sent:
            yield lrcore.json_text(cells, nulls=True)
            sent = cells
        known = figure is not None and (uniform is None or other is not None)
        if known and not (live.unfinished(browser.session_hash) or live.unfinished(beside)):
            return
        await asyncio.sleep(0.05)


def continued(store: Store, browser: gr.Request, key: str) -> dict[str, str]:
    """The prompt of this browser as the ranks on show continue it, by its place on the page."""
    said = store.live.continuation(key, store.shown.prompt(browser.session_hash))
    return {} if said is None else {continuation_text.PLACE: continuation_text.shown(key, said)}


def ask(store: Store, browser: gr.Request, opened: bool, prompt: str, *values: Any) -> None:
    """Have the prompt continued by the ranks on show; by none where nobody looks."""
    store.shown.ask(browser.session_hash, prompt if opened else "")
    recipe = try_recipe(values)
    if recipe is None or unmeasured_evidence(store, recipe) is not None:
        return
    request = store.live_request(recipe, browser.session_hash)
    if request is not None and store.live.newest(browser.session_hash) == request.key:
        store.live.request(request)


def draw_survey(store: Store, *values: Any) -> tuple[str, str]:
    """Every policy's share of each layer, and what is not shown."""
    return survey.surveyed(store, try_recipe(values))


def draw_ranking(store: Store, *values: Any) -> str:
    """What was measured at this budget, lowest first."""
    return survey.ranking(store, try_recipe(values))


def queue_survey(store: Store, *values: Any) -> None:
    start_survey(store, read_recipe(values))


def queue_factors(store: Store, browser: gr.Request, *values: Any) -> None:
    """Another method needs its own factors: queue them, for settings that were analysed before.
    What the choice before needed is dropped.
    """
    recipe = read_recipe(values)
    if store.peek_analysis(recipe) is not None:
        start_analysis(store, recipe, browser.session_hash, measure=False)


def measure(store: Store, browser: gr.Request, *values: Any) -> None:
    """Queue what the policy has to measure on the model."""
    start_analysis(store, read_recipe(values), browser.session_hash)


def beside_cells(key: str, pinned: str | None, figure: Figure, other: Figure) -> dict[str, str]:
    """The cell of what the ranks on show are held against, by its key."""
    if pinned is None:
        return {markup.uniform_key(key): markup.against_uniform(key, figure, other)}
    place = markup.pinned_key(key, pinned)
    return {place: markup.against_pinned(place, figure, other)}


def measure_more(store: Store, browser: gr.Request, *values: Any) -> None:
    """Have the ranks on show, and those that they are held against, measured on more tokens."""
    recipe = read_recipe(values)
    if unmeasured_evidence(store, recipe) is not None:
        return
    pinned = pin.pinned_plan(store, browser, recipe)
    requests = [store.live_request(recipe, browser.session_hash, MORE)]
    if pinned is None:
        requests.append(store.live_request_uniform(recipe, for_uniform(browser), MORE))
    else:
        requests.append(store.live_request(pinned[0], pin.name_for(browser), MORE))
    if requests[0] is None:
        return
    for one in requests:
        if one is not None and (one is requests[0] or one.key != requests[0].key):
            store.live.request(one)


def plan_shown(
    store: Store, browser: gr.Request, values: Sequence[Any], said: str = ""
) -> tuple[Any, ...]:
    """Bars and their caption, summary, whether a temperature counts, what method and policy do, a
    key of the ranks, the temperature slider. A number out of range has no plan: in its place is
    said why. Until there are factors the plots of before stay, dimmed. said: of what was typed,
    above the summary.
    """
    keep = gr.skip()
    try:
        recipe = read_recipe(values)
    except lrcore.InputError as error:
        return "", "", markup.stale(markup.note(str(error), "error")), keep, keep, "", keep
    about = about_choice(recipe)
    temperature = gr.update(visible=policy_row(recipe)["temperature"])
    lacking = unmeasured_evidence(store, recipe)
    drawn = recipe if lacking is None else shown_before(store, browser, recipe, lacking)
    try:
        plan, uniform = store.plan(drawn), store.uniform_plan(drawn)
    # a slider that has gone too far says so in its place instead of raising a toast at every step
    except lrcore.InputError as error:
        refused = markup.stale(markup.note(f"{said} {error}".strip(), "error"))
        return keep, keep, refused, temperature, about, keep, keep
    if plan is None or uniform is None:
        note = markup.missing(store.awaited(recipe), text.NO_FACTORS)
        return keep, keep, markup.stale(note), temperature, about, "", keep
    if lacking is not None:
        pale = bars(plan, uniform, (), f"{drawn.policy}, not chosen")
        before = (captioned(pale, saving_text.plan_source(drawn, plan.budget)), "")
        first = markup.note(said, "error") + to_measure(recipe, lacking, drawn, plan)
        return *before, first, temperature, about, "", keep
    store.shown.note(browser.session_hash, recipe)
    caption = saving_text.plan_source(recipe, plan.budget)
    cells = actual(store, recipe, browser) + against(store, recipe, browser, plan)
    drawn_bars, words = beside(store, browser, recipe, plan, uniform)
    return (
        captioned(drawn_bars, caption),
        markup.note(words) + standing(store, recipe, plan),
        markup.note(said, "error")
        + markup.summary(plan.summary(), cells, store.shown.context(browser.session_hash)),
        temperature,
        about,
        store.live_key(recipe),
        temperature_slider(plan, by_rule=recipe.temperature is None),
    )


def shown_before(
    store: Store, browser: gr.Request, recipe: lrcore.Recipe, lacking: Unmeasured
) -> lrcore.Recipe:
    """What is on show until the recipe's policy has measured: the ranks of the policy before. What
    is on disk is read at once.
    """
    if lacking.seconds == 0:
        start_analysis(store, recipe, browser.session_hash)
    for name in (browser.session_hash, for_uniform(browser), pin.name_for(browser)):
        store.live.forget(name)
    before = store.shown.before(browser.session_hash, recipe)
    return before if store.peek_factors(before) is not None else unmeasured(recipe)


def to_measure(
    recipe: lrcore.Recipe, lacking: Unmeasured, drawn: lrcore.Recipe, plan: lrcore.RankPlan
) -> str:
    """That a policy has to measure first, with a button, above what the ranks on show give."""
    ask = markup.measure_first(recipe, lacking.seconds, lacking.running, drawn.policy)
    return f"{ask}<div class='before'>{markup.summary(plan.summary())}</div>"


def actual(store: Store, recipe: lrcore.Recipe, browser: gr.Request) -> str:
    """The cell of the measured perplexity; asks for the figure where it is not known yet."""
    request = store.live_request(recipe, browser.session_hash)
    if request is None:
        key = store.live_key(recipe)
        return markup.actual(key, store.live.peek(key) or Figure(error=text.TOO_LARGE))
    store.live.request(request)
    return markup.actual(request.key, store.live.peek(request.key))


def for_uniform(browser: gr.Request) -> tuple[str, str]:
    """The name under which a browser asks for the figure that the one on show is held against."""
    return browser.session_hash, UNIFORM


def against(store: Store, recipe: lrcore.Recipe, browser: gr.Request, plan: lrcore.RankPlan) -> str:
    """The cells of what the ranks on show are held against: the pinned plan, or uniform ranks."""
    cells = pin.cells(store, browser, recipe, plan)
    if cells is None:
        return against_uniform(store, recipe, browser)
    store.live.forget(for_uniform(browser))
    return cells


def beside(
    store: Store,
    browser: gr.Request,
    recipe: lrcore.Recipe,
    plan: lrcore.RankPlan,
    uniform: lrcore.RankPlan,
) -> tuple[str, str]:
    """The bars before those of the pinned plan, or of uniform ranks, and what they say."""
    found = pin.pinned_plan(store, browser, recipe)
    if found is None:
        return bars(plan, uniform, recipe.overrides), conclusion(plan, uniform)
    pinned, other = found
    said = pin.words(plan, pinned, other)
    if not pin.alike(plan, other):
        return bars(plan, uniform, recipe.overrides), said
    return bars(plan, other, recipe.overrides, pinned=True), said


def against_uniform(store: Store, recipe: lrcore.Recipe, browser: gr.Request) -> str:
    """The cell that says whether the ranks on show hurt or help against uniform ones; none where
    they are uniform.
    """
    key = store.live_key(recipe)
    request = store.live_request_uniform(recipe, for_uniform(browser))
    if request is None or request.key == key:
        store.live.forget(for_uniform(browser))
        return ""
    store.live.request(request)
    return markup.against_uniform(key, store.live.peek(key), store.live.peek(request.key))


def bars(
    plan: Any, behind: Any, by_hand: Collection[str], other: str = "", pinned: bool = False
) -> str:
    """The figure of a plan's ranks before those of another. other, pinned: see `RankBars`."""
    steps = {component: spectrum.cost.step for (_, component), spectrum in plan.spectra.items()}
    steps = {} if other else steps
    return rank_bars(RankBars(of_parts(plan), of_parts(behind), by_hand, steps, other, pinned))


def of_parts(plan: Any) -> dict[str, list[Bar]]:
    """A plan's slots by the part of a layer that they belong to, layer by layer."""
    slots: dict[tuple[str, int], list[str]] = {}
    for (layer, component), spectrum in plan.spectra.items():
        part = component if spectrum.form is None else spectrum.form.part
        slots.setdefault((part, layer), []).append(component)
    parts: dict[str, list[Bar]] = {}
    for (part, layer), components in sorted(slots.items(), key=lambda one: one[0][1]):
        for place, component in enumerate(components):
            spectrum, rank = plan.spectra[layer, component], plan.ranks[layer, component]
            form = "" if spectrum.form is None else spectrum.form.name
            bar = Bar(layer, component, rank, spectrum.cost.full, form, place, len(components))
            parts.setdefault(part, []).append(bar)
    return parts


def conclusion(plan: Any, uniform: Any) -> str:
    """Where most and least is kept."""
    if plan.ranks == uniform.ranks:
        return text.UNIFORM_BARS
    kept = {slot: rank / plan.spectra[slot].cost.full for slot, rank in plan.ranks.items()}
    most, least = max(kept, key=kept.get), min(kept, key=kept.get)
    return text.BARS.format(
        *most, numbers.percent(kept[most], 0), *least, numbers.percent(kept[least], 0)
    )


def standing(store: Store, recipe: lrcore.Recipe, plan: lrcore.RankPlan) -> str:
    """Whether compressing gives the ranks that the policy predicts to be best, and what the target
    costs.
    """
    said = text.standing(plan, recipe.policy, store.drafted(recipe))
    return markup.note(f"{said} {cost_of_target(store, recipe, plan)}".strip())


def cost_of_target(store: Store, recipe: lrcore.Recipe, plan: lrcore.RankPlan) -> str:
    """What the same method and policy are predicted to give at this budget where any form runs, or
    how to learn that; "" where the target runs any.
    """
    anywhere = recipe.with_(target=lrcore.Recipe().target)
    if recipe.target == anywhere.target:
        return ""
    try:
        other = store.plan(anywhere)
    except lrcore.InputError:  # ranks set by hand
        return target_text.of_target(recipe.target)
    sentence = target_text.of_target(recipe.target)
    if other is None or other.predicted is None or plan.predicted is None:
        return f"{sentence} {target_text.COSTS_UNKNOWN}"
    here, there = plan.predicted.perplexity, other.predicted.perplexity
    change = numbers.share(here / there - 1)
    both = (numbers.perplexity(here), numbers.perplexity(there))
    return f"{sentence} {target_text.COSTS.format(*both, change)}"


def temperature_slider(plan: Any, by_rule: bool) -> Any:
    """The slider with the rule of thumb written under its name; it follows the rule while that
    is on, and reaches as far as the temperature that was typed.
    """
    if plan.suggested_temperature is None:
        return gr.skip()
    suggested = plan.suggested_temperature
    # The rule depends on how much the model's layers differ, from thousandths to tens: the slider's
    # range goes with it.
    digits = 1 - math.floor(math.log10(suggested))
    step = round(0.1**digits, digits)
    usual = round(10 * suggested + 0.1**digits, digits)
    most = max(usual, round(plan.temperature + 0.1**digits, digits))
    changes: dict[str, Any] = {"minimum": step, "maximum": most, "step": step}
    if by_rule or plan.temperature > usual:  # one that was typed; the browser shows the end before
        changes["value"] = max(step, round(plan.temperature, digits))
    return gr.update(info=text.SUGGESTED.format(suggested), **changes)


def about_choice(recipe: lrcore.Recipe) -> str:
    """What the chosen method and policy do."""
    method = next(row for row in lrcore.methods() if row["name"] == recipe.method)
    policy = policy_row(recipe)
    return markup.about(method["name"], method["paper"], method["notes"]) + markup.about(
        policy["name"], policy["summary"]
    )
