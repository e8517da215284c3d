"""Event-driven search for the best NVIDIA Dynamo deployment."""
