"""Push runs: the rules of runs for which runners are invoked, pass by pass."""
