"""The bus over a RabbitMQ broker."""
