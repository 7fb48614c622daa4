// The forms of the page, by the id of their component; see form-values.js. `address` holds the
// query parameters of the first address, as assets/address.js stores them.
const forms = {
  address: {
    ask: (resolve) =>
      resolve(Object.fromEntries(new URLSearchParams(window.openedWith))),
  },
};
// Returns the inputs of a listener with the values of its forms and of its groups of fields. names:
// of the forms, by position, and null for a group. A form not yet drawn has its initial values.
async function readForms(inputs, names) {
  const read = (value, i) => {
    if (names[i] === null) return value.map((field) => field.value);
    return forms[names[i]] ? new Promise(forms[names[i]].ask) : value;
  };
  return Promise.all(inputs.map(read));
}
