"""`python -m spica_async` is `spica-async`."""

from spica_async.cli import main

if __name__ == "__main__":
    main()
