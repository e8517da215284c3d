"""The daemon over HTTP: `app.make_app` speaks for a `Control`, `server.serve` lets it be heard.

Nothing is imported here, so that the command line may ask for the address alone.
"""
