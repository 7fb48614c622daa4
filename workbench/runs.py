"""The runs that the page shows: lrcore's, under the names used here."""

import lrcore

Run, Runs, root = lrcore.Run, lrcore.Runs, lrcore.runs_root
