"""`python -m workers` is `spica-worker`."""

from workers.cli import main

if __name__ == "__main__":
    main()
