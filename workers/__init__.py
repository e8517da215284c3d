"""The worker: takes evaluation requests from the bus and replays them in child processes."""
