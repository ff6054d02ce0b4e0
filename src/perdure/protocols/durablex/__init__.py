"""The push protocol: what applications, runners and callers say, and what it means to us."""
