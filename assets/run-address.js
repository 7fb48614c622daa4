// Keeps the value, the id of a run or "", in the address bar. Needs address.js.
watch('value', () => address({ run: props.value }));
