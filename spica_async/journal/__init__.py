"""The durable record of every sweep: what a coordinator that starts again goes on from."""
