"""Push runs: the rules of runs whose code a runner executes, one invocation (pass) at a time."""
