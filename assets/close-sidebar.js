// An open sidebar covers a narrow page: close it there.
() => {
  if (window.innerWidth <= 768) document.querySelector('.sidebar.open .toggle-button')?.click();
};
