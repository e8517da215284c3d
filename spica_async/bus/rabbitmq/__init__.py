"""The bus over a RabbitMQ broker."""

from spica_async.bus.rabbitmq.bus import RabbitBus
from spica_async.bus.rabbitmq.state import BusState

__all__ = ["BusState", "RabbitBus"]
