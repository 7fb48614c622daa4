// An open sidebar covers a narrow page: close it there.
() => {
  if (window.innerWidth < 700) document.querySelector('.sidebar.open .toggle-button')?.click();
};
