// Gradio's list of choices opens again after any key, also after Tab, which leaves it: the list
// would stay open over the form. So the list does not see Tab; the browser moves the focus.
document.addEventListener(
  'keydown',
  (event) => {
    if (event.key === 'Tab' && event.target.matches?.('input[aria-expanded]'))
      event.stopPropagation();
  },
  true,
);
