// Opens the fold of expert settings for a message or a link that points into it: see expert_fold()
// in workbench/widgets/expert_fold.py. labels: of the controls in the fold.
const FOLD_PATIENCE = 300; // times 100 ms, until the parts of a tab that opens are on the page
const FOLD_STEADY = 10; // times 100 ms, until the page no longer rebuilds a fold
function openFoldByItself(fold, labels, parameters, planId) {
  const label = () => document.querySelector(`#${fold} > button.label-wrap`);
  const isShown = (node) => node && node.checkVisibility();
  function open() {
    const button = label();
    if (isShown(button) && !button.classList.contains('open')) button.click();
  }
  function names(text) {
    return labels.some((one) => text.includes(one));
  }
  const messages = document.querySelector('.toast-wrap');
  if (messages)
    new MutationObserver(() => {
      if (names(messages.textContent)) open();
    }).observe(messages, { childList: true, subtree: true });
  const plan = planId && document.getElementById(planId);
  if (plan)
    new MutationObserver(() => {
      if (plan.querySelector('.stale .note.error')) open();
    }).observe(plan, { childList: true, subtree: true });
  const query = new URLSearchParams(window.openedWith);
  // A press that comes before the fold listens is lost, and a fold that is rebuilt is closed again.
  (function openForLink(left, steady) {
    if (!left || steady === FOLD_STEADY) return;
    const isOpen = label()?.classList.contains('open');
    if (!isOpen) open();
    setTimeout(() => openForLink(left - 1, isOpen ? steady + 1 : 0), 100);
  })(parameters.some((name) => query.get(name)) ? FOLD_PATIENCE : 0, 0);
}
