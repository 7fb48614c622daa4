// Asks before a run is deleted: its id, or "" where the reader declines.
(id) => (confirm($QUESTION) ? id : '');
