"""Assets, formats of numbers, and memory and priorities of the process."""
