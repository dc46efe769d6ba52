"""`python -m metatxn` is the command `metatxn`."""

from metatxn.cli.main import main

if __name__ == "__main__":
    main()
