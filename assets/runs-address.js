// Stores the ids of the selected runs in the address.
(ids) => address({ runs: (ids || []).join(',') });
