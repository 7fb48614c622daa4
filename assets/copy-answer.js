// Copies the text of an answer when its button is pressed.
// Runs after copy.js as js_on_load of a gr.HTML, which provides element.
element.addEventListener('click', (e) => {
  const button = e.target.closest('button.copy');
  if (button) copy(button.closest('section').dataset.text);
});
