"""The events of a sweep: worked out from its facts, and numbered until the journal has them."""
