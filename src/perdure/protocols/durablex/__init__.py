"""The push protocol: the requests of applications, runners and callers, and their meaning."""
