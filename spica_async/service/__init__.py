"""The tuning daemon: many sweeps side by side, controlled over HTTP and AMQP."""
