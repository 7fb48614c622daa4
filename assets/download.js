// Saves the value as a file in the browser: {name, text}, or {name, address} of a file on the
// server.
watch('value', () => {
  if (!props.value) return;
  const file = JSON.parse(props.value),
    link = document.createElement('a');
  link.href =
    file.address ||
    URL.createObjectURL(new Blob([file.text], { type: 'text/plain;charset=utf-8' }));
  link.download = file.name;
  document.body.appendChild(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
});
