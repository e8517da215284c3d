"""The bus between coordinator and workers: one port, several implementations."""
