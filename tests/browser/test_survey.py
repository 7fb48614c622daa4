"""A survey of all methods: the ranking by measurements, the plot of all policies, and a form that
keeps its values while slow figures are drawn.
"""

import pytest

import lrcore

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.soak]

# Perplexity of the displayed ranks and of uniform ones, and their comparison; null until the ranks
# are called harmful.
HURTS = """() => {
  const actual = document.querySelector('#size-and-cost .actual');
  const against = document.querySelector('#size-and-cost .against.hurts');
  return actual && against
    && [actual.dataset.perplexity, against.dataset.perplexity, against.innerText]; }"""
RANKED = """() => [...document.querySelectorAll('#ranking tr')].map(
  row => [...row.querySelectorAll('td')].map(cell => cell.innerText)).filter(row => row.length)"""
METHODS = {row["name"] for row in lrcore.list_methods()} - {"clover"}
"""The methods that can remove 30 %: with rotary positions, clover changes OV only."""
KV = {"care", "mha2mla", "transmla"}


@pytest.fixture(scope="module")
def harmful(workbench):
    """Return the perplexities of a harmful plan and of uniform ranks on demo-llama.

    The dual scores starve single layers (docs/benchmarks/policies.md); all methods are surveyed.
    """
    # few short windows, with which `fused` is refitted in a second
    workbench.open("Calibration windows")
    workbench.type_into("field-samples", "16")
    workbench.type_into("field-seq_len", "64")
    workbench.click("#analyse")
    workbench.allocation()
    workbench.set_range("field-ratio", 0.3)
    workbench.choose("field-policy", "softmax_dual")
    workbench.shows_ratio(0.3)
    loss, uniform_loss, words = workbench.until(
        lambda: workbench.evaluate(HURTS), "the harmful policy is not reported"
    )
    assert f"{float(loss) / float(uniform_loss) - 1:.1%} ± " in words
    assert "Worse than uniform ranks by " in words
    workbench.click("#survey")
    return float(loss), float(uniform_loss)


def test_methods_and_policies_are_ranked_by_measurements(workbench, harmful):
    default_pairs = {("a3", "softmax_dual"), ("a3", "uniform")}
    workbench.see("#policies")

    def ranked():
        rows = workbench.evaluate(RANKED)
        result = [(method, policy, float(value)) for method, policy, value, _ in rows]
        pairs = {(method, policy) for method, policy, _ in result}
        # the ratio of KV methods counts the cache
        return {method for method, _ in pairs} == METHODS - KV and default_pairs <= pairs and result

    result = workbench.until(ranked, "a method is not measured")
    assert [value for _, _, value in result] == sorted(value for _, _, value in result)
    values = {(method, policy): value for method, policy, value in result}
    assert (values["a3", "softmax_dual"], values["a3", "uniform"]) == harmful
    workbench.until(
        lambda: "a3 with softmax_dual (this plan) is" in workbench.locator("#ranking").inner_text(),
        "the worst pair is not named",
    )
    workbench.choose("field-policy", "uniform")
    workbench.until(
        lambda: workbench.locator("#size-and-cost .against").count() == 0,
        "uniform ranks are compared with themselves",
    )


def test_all_policies_of_all_methods_are_drawn(workbench, harmful):
    workbench.see("#policies")

    def complete_figure():
        plot = workbench.plot("policy-curves")
        return {trace["hover"].split(" ")[0] for trace in plot["traces"]} >= METHODS and plot

    figure = workbench.until(complete_figure, "a method is not drawn")
    workbench.until_idle()
    lines = {trace["hover"].split("<br>")[0]: trace["y"] for trace in figure["traces"]}
    assert {"a3 · uniform", "a3 · softmax", "a3 · waterfill", "svd · uniform"} <= lines.keys()
    assert all(0 < share <= 1 for line in lines.values() for share in line)
    assert (
        max(lines["a3 · uniform"]) - min(lines["a3 · uniform"])
        < 0.03
        < max(lines["a3 · softmax"]) - min(lines["a3 · softmax"])
    )


def test_policies_are_redrawn_when_they_become_visible(workbench, harmful):
    """The plot needs a dozen plans per method, so a slider does not wait for it."""

    def caption():
        return workbench.locator("#policy-curves .plot-head span").inner_text()

    workbench.see("#policies")
    workbench.until(lambda: "30.0% removed" in caption(), "the policies at 30 % are not drawn")
    workbench.see("#bars")
    workbench.at_ratio(0.2)
    workbench.answered()
    assert "30.0% removed" in caption()
    workbench.see("#policies")
    workbench.until(lambda: "20.0% removed" in caption(), "the policies are not redrawn")
    workbench.see("#bars")
    workbench.at_ratio(0.3)


def test_choices_are_preserved_while_slow_figures_are_drawn(workbench, harmful):
    """After a survey, the figures take a while; choices made meanwhile must not be reset."""
    workbench.until_idle()
    workbench.open("Options of")
    for _ in range(2):
        workbench.choose("field-method", "latentllm")
        workbench.page.wait_for_selector("#option-junction")
        workbench.choose("option-junction", "symmetric")
        workbench.until(
            lambda: workbench.recipe()["options"] == {"junction": "symmetric"},
            "the option is not in the recipe",
        )
        workbench.until(lambda: workbench.plotted("joint_qk"), "latentllm is not drawn")
        workbench.answered()  # all figures are drawn
        assert workbench.recipe()["options"] == {"junction": "symmetric"}
        workbench.choose("field-method", "a3")
        workbench.until(lambda: workbench.plotted("ov"), "a3 is not drawn")
        # a click on a disappearing box would be lost
        workbench.page.wait_for_selector("#option-junction", state="detached")
