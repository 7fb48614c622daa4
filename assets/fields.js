// Draws the fields of the value and reports what is entered: see workbench/widgets/fields.py.
const box = document.createElement('div');
box.className = 'fields';
element.append(box);
let drawn = ''; // the fields on the page, without their values
function kindOf(field) {
  if (field.choices.length) return 'choice';
  if (typeof field.value === 'boolean') return 'flag';
  if (typeof field.value === 'string') return 'text';
  return field.step === null ? 'number' : 'range';
}
function made(tag, settings, ...children) {
  const node = Object.assign(document.createElement(tag), settings);
  node.append(...children);
  return node;
}
function read(input, field) {
  if (input.tagName === 'SELECT') return field.choices[input.selectedIndex][1];
  if (input.type === 'checkbox') return input.checked;
  if (input.type === 'text') return input.value;
  return Number.isFinite(input.valueAsNumber) ? input.valueAsNumber : null;
}
function write(input, field) {
  const { value, choices } = field;
  if (input.tagName === 'SELECT')
    input.selectedIndex = choices.findIndex((choice) => choice[1] === value);
  else if (input.type === 'checkbox') input.checked = value;
  else input.value = value ?? '';
  showNumber(input);
}
// The number of a slider stands beside its name.
function showNumber(input) {
  if (input.type === 'range') input.parentElement.querySelector('output').value = input.value;
}
// Typing a text reports nothing until the box loses the focus.
function report(event, i, input) {
  const { elem_id, owner } = props.value[i],
    value = read(input, props.value[i]);
  showNumber(input);
  props.value = props.value.map((field, at) => (at === i ? { ...field, value } : field));
  if (event === 'blur' || input.type !== 'text')
    trigger(event, { field: elem_id, owner, value });
}
function inputOf(field, i) {
  const kind = kindOf(field);
  const names = field.choices.map((choice) => new Option(choice[0]));
  const types = { flag: 'checkbox', text: 'text', number: 'number', range: 'range' };
  const input =
    kind === 'choice' ? made('select', {}, ...names) : made('input', { type: types[kind] });
  if (kind === 'text') input.placeholder = field.placeholder;
  if (kind === 'number' || kind === 'range') {
    input.step = field.step ?? 'any';
    if (field.low !== null) input.min = field.low;
    if (field.high !== null) input.max = field.high;
  }
  if (kind === 'number' || kind === 'text')
    input.addEventListener('change', () => report('blur', i, input));
  if (field.suggestions.length) input.setAttribute('list', `${field.elem_id}-list`);
  input.addEventListener('input', () => report('input', i, input));
  return input;
}
function labelled(field, i) {
  const kind = kindOf(field),
    input = inputOf(field, i);
  const name = made('span', { className: 'name', textContent: field.label });
  if (kind === 'range') name.append(made('output', {}));
  const info = made('span', { className: 'info', textContent: field.info });
  const parts = kind === 'flag' ? [input, name, info] : [name, info, input];
  const node = made('div', { id: field.elem_id, className: 'field' });
  node.append(made('label', { className: kind }, ...parts));
  const suggestions = field.suggestions.map((name) => new Option(name));
  if (suggestions.length)
    node.append(made('datalist', { id: `${field.elem_id}-list` }, ...suggestions));
  return node;
}
function submitButton() {
  const [id, textContent] = props.button,
    button = made('button', { type: 'button', id, className: 'act', textContent });
  button.addEventListener('click', () => trigger('submit'));
  return button;
}
function draw() {
  const fields = props.value || [];
  const shapes = fields.map((field) => ({ ...field, value: kindOf(field) }));
  if (JSON.stringify(shapes) !== drawn) {
    box.replaceChildren(...fields.map(labelled));
    if (props.button) box.append(submitButton());
  }
  drawn = JSON.stringify(shapes);
  const inputs = box.querySelectorAll('input, select');
  fields.forEach((field, i) => {
    if (read(inputs[i], field) !== field.value || inputs[i].type === 'range')
      write(inputs[i], field);
  });
}
watch('value', draw);
draw();
