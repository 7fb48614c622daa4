// Keeps the value, the id of a run or "", in the address bar.
watch('value', () => address({ run: props.value }));
