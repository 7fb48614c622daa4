// Stores the value, the id of a run or "", in the address.
watch('value', () => address({ run: props.value }));
