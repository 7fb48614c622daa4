"""HTML of runs, jobs, calibration, memory and exports."""
