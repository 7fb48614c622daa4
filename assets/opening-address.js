// The address as the page was opened with: it changes with what a person does from then on.
window.openedWith = window.location.search;
