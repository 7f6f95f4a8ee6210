"""`python -m playhead`: the command line."""

from playhead.cli import main

if __name__ == "__main__":
    main()
