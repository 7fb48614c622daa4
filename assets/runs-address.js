// Keeps the ids of the chosen runs in the address bar.
(ids) => address({ runs: (ids || []).join(',') });
