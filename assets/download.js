// Saves the value, {name, text}, as a file in the browser.
watch('value', () => {
  if (!props.value) return;
  const file = JSON.parse(props.value),
    link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([file.text], { type: 'text/plain;charset=utf-8' }));
  link.download = file.name;
  document.body.appendChild(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
});
