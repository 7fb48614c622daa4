// Stores the ids of the selected runs in the address, once a person has used the page: until then
// the address stays as it was opened.
(ids) => {
  if (navigator.userActivation?.hasBeenActive !== false) address({ runs: (ids || []).join(',') });
};
