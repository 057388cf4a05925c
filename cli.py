"""A door to the command line for a checkout: ``python cli.py --help``."""

from vtoken_sdk.cli import main

if __name__ == "__main__":
    main()
