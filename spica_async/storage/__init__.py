"""The databases under the journal and the cache of results: SQLite and PostgreSQL."""
