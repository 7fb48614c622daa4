// When the page has opened: on a narrow page, close the sidebar, which it would cover; for an
// address with ?view=api, show the list of endpoints. Gradio loads that list only when its link at
// the foot of the page is pressed, and counts it as open already: the first press closes it.
() => {
  if (window.innerWidth <= 768) document.querySelector('.sidebar.open .toggle-button')?.click();
  const endpoints = document.querySelector('footer .show-api');
  if (endpoints && new URLSearchParams(window.openedWith).get('view') === 'api') {
    endpoints.click();
    endpoints.click();
  }
};
