"""`python -m spica_async` is `spica-async`."""

from spica_async.cli.app import main

if __name__ == "__main__":
    main()
