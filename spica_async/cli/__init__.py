"""The command line: each command in the module of its name, put together in `app`."""


def main() -> None:
    """The program `spica-async`."""
    from spica_async.cli.app import app
    from spica_async.cli.program import run_as_program

    run_as_program(app)
