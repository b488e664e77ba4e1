"""``python -m dray``: the command line."""

from dray.cli import main

if __name__ == "__main__":
    main()
