"""Every method surveyed: the ranking by what was measured, the plot of all policies, and a form
that stays as it was chosen while slow figures are drawn. One page, and one survey.
"""

import pytest

import lrcore

pytestmark = [pytest.mark.browser, pytest.mark.slow]

# The perplexity of the ranks on show, that of uniform ones, and what is said of the two; nothing
# before the ranks are called harmful.
HURTS = """() => {
  const actual = document.querySelector('#size-and-cost .actual');
  const against = document.querySelector('#size-and-cost .against.hurts');
  return actual && against
    && [actual.dataset.perplexity, against.dataset.perplexity, against.innerText]; }"""
RANKED = """() => [...document.querySelectorAll('#ranking tr')].map(
  row => [...row.querySelectorAll('td')].map(cell => cell.innerText)).filter(row => row.length)"""
METHODS = {row["name"] for row in lrcore.list_methods()} - {"clover"}
"""Those that can remove 30 %: with rotary positions clover changes OV alone."""
KV = {"care", "mha2mla", "transmla"}


@pytest.fixture(scope="module")
def harmful(workbench):
    """Return the perplexities of a harmful plan and of uniform ranks on demo-llama.

    The dual scores starve single layers (docs/benchmarks/policies.md); every method is surveyed.
    """
    workbench.open("Calibration windows")  # of few and short ones `fused` is refitted in a second
    workbench.type_into("field-samples", "16")
    workbench.type_into("field-seq_len", "64")
    workbench.click("#analyse")
    workbench.allocation()
    workbench.set_range("field-ratio", 0.3)
    workbench.choose("field-policy", "softmax_dual")
    workbench.shows_ratio(0.3)
    loss, uniform_loss, words = workbench.until(
        lambda: workbench.evaluate(HURTS), "a policy that hurts is not called so"
    )
    assert f"{float(loss) / float(uniform_loss) - 1:.1%} ± " in words
    assert "Worse than uniform ranks by " in words
    workbench.click("#survey")
    return float(loss), float(uniform_loss)


@pytest.mark.soak
def test_methods_and_policies_are_ranked_by_what_was_measured(workbench, harmful):
    default_pairs = {("a3", "softmax_dual"), ("a3", "uniform")}
    workbench.see("#policies")

    def ranked():
        rows = workbench.evaluate(RANKED)
        result = [(method, policy, float(value)) for method, policy, value, _ in rows]
        pairs = {(method, policy) for method, policy, _ in result}
        # their ratio is one of the cache
        return {method for method, _ in pairs} == METHODS - KV and default_pairs <= pairs and result

    result = workbench.until(ranked, "not every method is measured")
    assert [value for _, _, value in result] == sorted(value for _, _, value in result)
    values = {(method, policy): value for method, policy, value in result}
    assert (values["a3", "softmax_dual"], values["a3", "uniform"]) == harmful
    workbench.until(
        lambda: "a3 with softmax_dual (this plan) is" in workbench.locator("#ranking").inner_text(),
        "the worst is not named",
    )
    workbench.choose("field-policy", "uniform")
    workbench.until(
        lambda: workbench.locator("#size-and-cost .against").count() == 0,
        "uniform ranks are held against themselves",
    )


def test_every_policy_of_every_method_is_drawn(workbench, harmful):
    workbench.see("#policies")

    def complete_figure():
        plot = workbench.plot("policy-curves")
        return {trace["hover"].split(" ")[0] for trace in plot["traces"]} >= METHODS and plot

    figure = workbench.until(complete_figure, "not every method is drawn")
    workbench.until_idle()
    lines = {trace["hover"].split("<br>")[0]: trace["y"] for trace in figure["traces"]}
    assert {"a3 · uniform", "a3 · softmax", "a3 · waterfill", "svd · uniform"} <= lines.keys()
    assert all(0 < share <= 1 for line in lines.values() for share in line)
    assert (
        max(lines["a3 · uniform"]) - min(lines["a3 · uniform"])
        < 0.03
        < max(lines["a3 · softmax"]) - min(lines["a3 · softmax"])
    )


def test_policies_are_drawn_anew_where_one_sees_them(workbench, harmful):
    """They take a dozen plans of every method: a slider need not wait for them."""

    def caption():
        return workbench.locator("#policy-curves .plot-head span").inner_text()

    workbench.see("#policies")
    workbench.until(lambda: "30.0% removed" in caption(), "the policies at 30 % are not drawn")
    workbench.see("#bars")
    workbench.at_ratio(0.2)
    workbench.answered()
    assert "30.0% removed" in caption()
    workbench.see("#policies")
    workbench.until(lambda: "20.0% removed" in caption(), "the policies are not drawn anew")
    workbench.see("#bars")
    workbench.at_ratio(0.3)


def test_a_choice_is_kept_while_slow_figures_are_drawn(workbench, harmful):
    """With every method surveyed the figures take a while; what was chosen meanwhile stays."""
    workbench.until_idle()
    workbench.open("Options of")
    for _ in range(2):
        workbench.choose("field-method", "latentllm")
        workbench.page.wait_for_selector("#option-junction")
        workbench.choose("option-junction", "symmetric")
        workbench.until(
            lambda: workbench.recipe()["options"] == {"junction": "symmetric"},
            "the recipe does not hold the option",
        )
        workbench.until(lambda: workbench.plotted("joint_qk"), "latentllm is not drawn")
        workbench.answered()  # every figure is drawn
        assert workbench.recipe()["options"] == {"junction": "symmetric"}
        workbench.choose("field-method", "a3")
        workbench.until(lambda: workbench.plotted("ov"), "a3 is not drawn")
        # a press on what goes would be lost
        workbench.page.wait_for_selector("#option-junction", state="detached")
