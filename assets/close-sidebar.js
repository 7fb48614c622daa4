// Close the sidebar on a narrow page, which it would cover.
() => {
  if (window.innerWidth <= 768) document.querySelector('.sidebar.open .toggle-button')?.click();
};
