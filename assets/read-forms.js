// The forms of the page, by the id of their component; see form-values.js. `address` holds the
// query parameters of the first address, as assets/address.js stores them, and `plan-rest` the
// number of the last gesture, see assets/gestures.js.
const forms = {
  address: {
    ask: (resolve) =>
      resolve(Object.fromEntries(new URLSearchParams(window.openedWith))),
  },
  'plan-rest': { ask: (resolve) => resolve(gesture) },
};
// Returns the inputs of a listener with the current values of its forms. names: of the forms, by
// position. A form that was not drawn yet has its initial values.
async function readForms(inputs, names) {
  const read = (value, i) =>
    forms[names[i]] ? new Promise(forms[names[i]].ask) : value;
  return Promise.all(inputs.map(read));
}
