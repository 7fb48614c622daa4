// Keeps the value, an object of query parameters, in the address bar. Needs address.js.
watch('value', () => address(JSON.parse(props.value || '{}')));
