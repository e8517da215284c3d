"""`python -m workers` is `spica-worker`."""

from spica_async.cli.worker import main

if __name__ == "__main__":
    main()
