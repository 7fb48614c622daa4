// Shows the explanation of a term of the glossary, $TERMS, above or below the term: at the pointer,
// with the keyboard focus, or after a tap. Escape hides it.
const explanations = $TERMS;
let tip = null,
  explained = null; // the term whose explanation is shown
function explain(term) {
  if (!tip) {
    tip = document.createElement('div');
    Object.assign(tip, { id: 'term-tip', hidden: true });
    tip.setAttribute('role', 'tooltip');
    document.querySelector('.gradio-container').append(tip);
  }
  explained?.removeAttribute('aria-describedby');
  explained = term;
  tip.hidden = !term;
  if (!term) return;
  tip.textContent = explanations[term.dataset.term];
  term.setAttribute('aria-describedby', tip.id);
  const box = term.getBoundingClientRect(),
    above = box.top - tip.offsetHeight - 6,
    rightmost = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = Math.max(8, Math.min(box.left, rightmost)) + 'px';
  tip.style.top = (above > 8 ? above : box.bottom + 6) + 'px';
}
const termOf = ({ target }) => target.closest?.('dfn.term');
for (const shown of ['pointerover', 'focusin', 'click'])
  document.addEventListener(shown, (event) => {
    const term = termOf(event);
    if (term) explain(term);
    else if (explained && event.target !== tip && explained !== document.activeElement)
      explain(null);
  });
document.addEventListener('focusout', (event) => termOf(event) && explain(null));
document.addEventListener('scroll', () => explained && explain(null), true);
document.addEventListener('keydown', ({ key }) => key === 'Escape' && explained && explain(null));
