"""`python -m perdure` is the same as the `perdure` command."""

from perdure.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
