// Answers `readForms` with the values of the parts of a form: see FormData in
// workbench/widgets/events.py. The listener of `read` calls `answer` with them.
// Runs as js_on_load of a gr.HTML, which provides trigger.
const waiting = [];
forms[$FORM] = {
  ask(resolve) {
    waiting.push(resolve);
    trigger('read');
  },
  answer(values) {
    waiting.shift()?.(values);
  },
};
